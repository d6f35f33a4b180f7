"""What the kernels are compiled to, for this processor and for lesser ones."""

from __future__ import annotations

import platform
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from backends import assembly
from support.kernels.numba_calls import compiled, needs_numba, run_program

pytestmark = needs_numba

# Lesser processors that numba can be told to compile for, with features that they have and not.
PROCESSORS = [
    pytest.param("generic", "", "", "avx f16c fma avx512f", id="any processor"),
    pytest.param(
        "haswell",
        "+avx,+avx2,+f16c,+fma,+sse4.2",
        "avx2 f16c fma",
        "avx512f",
        id="AVX2",
    ),
]

CHECK = """
import sys
from backends import assembly
from support.kernels import numba_calls
from gradwire_server.backends.numba_cpu.vectors import FEATURES
from support.kernels.numba_calls import compiled, streaming

numba_calls.check_all(compiled(2))
with streaming(2) as backend:
    numba_calls.check_all(backend)
numba_calls.check_guarded_sums()
every = numba_calls.methods()
assert {way.method for way in numba_calls.listed_ways()} == every
assert not any(map(assembly.fused, assembly.of_kernels().values()))
print(*(feature.strip("+") for feature in FEATURES))
"""


def _has(features: str) -> bool:
    if platform.machine() != "x86_64":
        return not features
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next(line for line in lines if line.startswith("flags"))
    return set(features.split()) <= set(flags.split())


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize(("processor", "told", "present", "missing"), PROCESSORS)
def test_code_for_other_processors_has_the_bits_of_numpy(
    processor: str, told: str, present: str, missing: str
) -> None:
    if not _has(present):
        pytest.skip(f"this processor lacks one of {present}")
    env = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": told}
    done = run_program(CHECK, env=env)
    assert done.returncode == 0, done.stderr
    features = set(done.stdout.split())
    assert features >= set(present.split())
    assert features.isdisjoint(missing.split())


@pytest.mark.slow
def test_no_compiled_function_multiplies_and_adds_with_one_rounding() -> None:
    compiled(1)
    found = assembly.of_kernels()
    assert "gradwire_server.backends.numba_cpu.blocks.run" in found
    assert any("mulps" in text and "addps" in text for text in found.values())
    assert not {name: assembly.fused(text) for name, text in found.items() if assembly.fused(text)}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are instructions of x86-64")
def test_streamed_lines_are_written_past_the_caches_and_fenced() -> None:
    compiled(1)
    found = assembly.of_kernels()
    package = "gradwire_server.backends.numba_cpu"
    assert "movnt" in found[f"{package}.rows.stream"]
    assert re.search(r"mfence|lock\s+or", found[f"{package}.blocks.run"])


@pytest.mark.skipif(not _has("fma"), reason="this processor has no fused multiply-add")
def test_a_fused_multiply_add_would_be_found() -> None:
    numba: Any = import_module("numba")
    arguments = (numba.float64, numba.float64, numba.float64)

    def one_rounding(a: float, b: float, c: float) -> float:
        return a * b + c

    separate = numba.njit(arguments)(one_rounding)
    fused = numba.njit(arguments, fastmath={"contract"})(one_rounding)
    assert not any(map(assembly.fused, assembly.of_function(separate)))
    assert any(map(assembly.fused, assembly.of_function(fused)))
