"""Tests of the benchmark `peers`: its reference, its ratios, its process trees."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from benchmarks.peers.problems import SMALL, gradient, reference, result_shape
from benchmarks.peers.processes import tree
from benchmarks.peers.rounds import ratio
from gradwire import ops
from gradwire_server import LocalClient

# Starts a child that sleeps, and waits for its own input to end.
_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
"""


def test_the_reference_is_what_the_kernels_compute() -> None:
    source = gradient(SMALL)
    operator = ops.TorchUpsampleBackward(mode="bilinear")
    result = LocalClient(backend="numpy_cpu").evaluate(
        operator, source, output_shape=result_shape(SMALL)
    )
    np.testing.assert_allclose(result, reference(source), atol=1e-5)


def test_a_ratio_is_of_samples_of_the_same_round() -> None:
    assert ratio([(2.0, 1.0), (None, 4.0), (3.0, None), (12.0, 3.0)]) == [3.0, 2.0, 4.0]
    assert ratio([(1.0, None)]) is None


def test_a_process_tree_has_children_of_children() -> None:
    with subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, "-c", _PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert child in tree(process.pid)
        process.stdin.close()
