"""A server takes no more than its container has, unless it is told to."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from gradwire_server.config import container_limits
from support.processes import run_command

GIB = 1 << 30


def groups(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write the files of control groups; return where, and the file that names one's own."""
    (folder / "own").write_text(own)
    for name, content in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder / "groups", folder / "own"


OF_VERSION_1 = "4:memory:/docker/abc\n2:cpuacct,cpu:/docker/abc\n0::/docker/abc\n"


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/\n", {"memory.max": "629145600\n"}, 629145600),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "7\n"}, 7),
        ("0::/a/b\n", {"a/b/memory.max": "5\n", "a/memory.max": "7\n"}, 5),
        ("0::/../x\n", {"memory.max": "7\n"}, 7),
        (OF_VERSION_1, {"memory/docker/abc/memory.limit_in_bytes": "9\n"}, 9),
        (OF_VERSION_1, {"memory/memory.limit_in_bytes": "9\n"}, 9),
        (OF_VERSION_1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("", {"memory.max": "7\n"}, None),
    ],
)
def test_the_limit_of_memory_is_the_least_of_all_groups(
    tmp_path: Path, own: str, files: dict[str, str], limit: int | None
) -> None:
    assert container_limits.memory_bytes(*groups(tmp_path, own, files)) == limit


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/a\n", {"a/cpu.max": "max 100000\n", "cpu.max": "100000 100000\n"}, 1),
        (OF_VERSION_1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (OF_VERSION_1, {"cpu/cpu.cfs_quota_us": "70000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 2),
    ],
)
def test_a_quota_of_processor_time_is_rounded_up_to_processors(
    tmp_path: Path, own: str, files: dict[str, str], quota: int | None
) -> None:
    cores = len(os.sched_getaffinity(0))
    given = container_limits.processors(*groups(tmp_path, own, files))
    assert given == (cores if quota is None else min(cores, quota))


def test_calls_have_what_workers_and_a_limit_of_address_space_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rooms = [container_limits.room_bytes(*each) for each in ((3 * GIB, 1), (3 * GIB, 4))]
    assert rooms == [2.5 * GIB, 1 * GIB]
    assert container_limits.room_bytes(GIB // 2, 1) == GIB // 8

    def left(limit: int, workers: int) -> int | None:
        monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
        return container_limits.address_space_room_bytes(workers)

    assert left(resource.RLIM_INFINITY, 2) is None
    assert (left(3 * GIB, 1), left(3 * GIB, 2), left(GIB, 1)) == (2 * GIB, 4 * GIB, GIB // 8)


IN_A_CONTAINER = """
import sys
from pathlib import Path
from gradwire_server import command
from gradwire_server.config import container_limits

found = container_limits.memory_bytes(Path(sys.argv.pop(1)), Path(sys.argv.pop(1)))
container_limits.memory_bytes = lambda: found
command.main()
"""


def test_limits_fit_the_container_unless_they_were_given(tmp_path: Path) -> None:
    where = groups(tmp_path, "0::/\n", {"memory.max": f"{GIB}\n"})

    def config(*flags: str) -> tuple[int, int, str]:
        done = run_command(
            "--print-config", *flags, program=("-c", IN_A_CONTAINER, *map(str, where))
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        return told["max_memory_bytes"], told["max_request_memory_bytes"], done.stderr

    assert config() == (GIB // 2, GIB // 2, "")
    given, _, words = config("--max-memory-bytes", str(GIB))
    assert given == GIB
    assert f"Warning: --max-memory-bytes is {GIB} and this container's limit {GIB}; " in words
