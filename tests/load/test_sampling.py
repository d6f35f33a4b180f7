"""What is seen of a server's processes, and what soak makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from gradwire.loadtest.generator import now
from gradwire.loadtest.runner import MetricsEndpoint, ProcessSampler, ProcessTree
from load.soak import Held, family, growth, held
from support.processes import running_command
from support.raw_calls import wait_until

BUSY = "sum(range(10**7))"


def test_a_tree_counts_children_and_forgets_none_of_their_time() -> None:
    tree = ProcessTree(os.getpid())
    before = tree()
    assert before is not None
    with subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, "-c", f"{BUSY}; print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        during = tree()
        child.communicate(b"\n")
    after = tree()
    assert during is not None
    assert after is not None
    assert (during.processes, after.processes) == (before.processes + 1, before.processes)
    assert during.rss_bytes > before.rss_bytes
    assert before.cpu_s < during.cpu_s <= after.cpu_s


def test_a_process_that_is_gone_is_nothing_to_see() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert ProcessTree(child.pid)() is None


def test_a_metrics_endpoint_tells_the_same_as_the_system(tmp_path: Path) -> None:
    flags = ("--http-port", "127.0.0.1:0", "--workers", "2", "--backend", "numpy_cpu")
    with running_command(*flags, log=tmp_path / "log") as command:
        command.wait_for_log(" worker serves ", times=2)
        address = command.http_address
        told = MetricsEndpoint(f"http://{address}/metrics")()
        seen = ProcessTree(command.pid)()
        assert told is not None
        assert seen is not None
        # The supervisor and both workers; they live on between the two looks.
        assert told.processes == seen.processes == 3
        assert seen.rss_bytes / 2 < told.rss_bytes < 2 * seen.rss_bytes
        assert 0 < told.cpu_s <= seen.cpu_s + 0.1


def test_no_endpoint_is_nothing_to_see(free_port: int) -> None:
    assert MetricsEndpoint(f"http://127.0.0.1:{free_port}/metrics")() is None


def test_a_sampler_tells_what_was_taken_between_two_looks() -> None:
    begin = now()
    with ProcessSampler(ProcessTree(os.getpid())) as sampler:
        wait_until(lambda: sum(range(10**6)) and sampler.seconds(begin))
    (second, *_) = sampler.seconds(begin)
    assert second.cpu_cores > 0
    assert second.rss_mib > 1
    assert sampler.seconds(now()) == []


def test_memory_that_grows_beyond_noise_is_found() -> None:
    chance = np.random.default_rng(0)
    seconds = list(range(1, 601))
    noise = chance.normal(0, 6, 600)
    still = (240 + noise).tolist()
    grown, bound = growth(seconds, still)
    assert grown <= bound
    leaking = (240 + noise + np.linspace(0, 40, 600)).tolist()
    grown, bound = growth(seconds, leaking)
    assert grown > bound


def test_what_a_process_holds_more_is_told() -> None:
    before = held(family(os.getpid()))
    read, write = os.pipe()
    with Path(os.devnull).open("rb"):
        after = held(family(os.getpid()))
    os.close(read)
    os.close(write)
    more = after.more_than(before)
    assert f"files: pipe: {before.files.get('pipe', 0)} before" in " ".join(more)
    assert held(family(os.getpid())).more_than(before) == []
    assert Held(1, {"a": 1, "b": 2}, {}, 0, 0.0).more_than(Held(1, {"a": 3}, {}, 0, 0.0)) == []
