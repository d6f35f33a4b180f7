"""Three load generators, one load: whether they tell the same of a server.

    PYTHONPATH=tests python -m load.agreement [--locust PYTHON] [--h2load PROGRAM] [--json FILE]

`gradwire bench`, Locust with a gRPC user (gevent) and h2load send the same tiny evaluation to the
same server in turn, in several rounds: at a fixed rate, and by callers who wait for each result.
Rates, medians and 99th percentiles are those from when a call was made, since the others do not
know when one was due. Beyond the median of the rounds stands the range.

h2load does not look at the status of a call, so the bytes that it received are counted: as many as
right replies have. Each generator takes processor time that the server on the same cores then
lacks, h2load little, Locust most: where callers wait for each other the rates differ by that.
Ends with status 1 where rates at the fixed rate are more than 5 % apart, or calls fail.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import machine
from gradwire import ops, v1
from gradwire.loadtest.result import from_json
from gradwire.loadtest.scenarios import PROBLEMS
from support.raw_calls import RawClient
from support.servers import serving_process

_METHOD: Final = "/gradwire.v1.GradientService/Evaluate"
_CALLERS: Final = 4
_APART: Final = 0.05


@dataclass(frozen=True, slots=True)
class Seen:
    """What one generator saw in one round; times from when a call was made."""

    calls_per_s: float
    p50_ms: float
    p99_ms: float
    failed: int


@dataclass(frozen=True, slots=True)
class Task:
    """What each is to do: rate in calls per second of all callers; None for as fast as they can."""

    address: str
    folder: Path
    rate: float | None
    seconds: int
    reply_bytes: int


def _request() -> bytes:
    problem = PROBLEMS["tiny"]
    float32 = v1.DataType.DATA_TYPE_FLOAT32
    return v1.EvaluateRequest(
        request_id="agreement",
        operator=ops.to_message(problem.operator),
        input=v1.TensorDescriptor(data_type=float32, sizes=problem.sent),
        output=v1.TensorDescriptor(data_type=float32, sizes=problem.received),
        data=problem.input().tobytes(),
    ).SerializeToString()


def bench(task: Task) -> Seen:
    """Run `gradwire bench`."""
    found = task.folder / "bench.json"
    pace = ("--concurrency", _CALLERS) if task.rate is None else ("--rate", task.rate)
    _run(
        [
            *(sys.executable, "-m", "gradwire", "bench", "--scenario", "tiny", "--warm-up", 1),
            *("--target", task.address, "--duration", task.seconds, "--connections", _CALLERS),
            *("--processes", 1, "--output", found, *pace),
        ]
    )
    flow = from_json(found.read_text(encoding="utf-8")).scenarios[0].flows[0]
    times = flow.uncorrected
    return Seen(flow.calls_per_s, times.p50_ms, times.p99_ms, flow.sent - flow.ok)


def locust(task: Task, python: str) -> Seen:
    """Run Locust; its users start within a second, which does not count."""
    found = task.folder / "locust.json"
    rate = {} if task.rate is None else {"LOAD_RATE": str(task.rate), "LOAD_USERS": str(_CALLERS)}
    _run(
        [
            *(python, "-m", "locust", "--headless", "--only-summary", "--loglevel", "ERROR"),
            *("-f", Path(__file__).with_name("locustfile.py"), "--host", task.address),
            *("--users", _CALLERS, "--spawn-rate", _CALLERS),
            *("--run-time", f"{task.seconds + 3}s"),
        ],
        LOAD_REQUEST=str(task.folder / "request"),
        LOAD_TIMES=str(found),
        **rate,
    )
    times = np.array(json.loads(found.read_text(encoding="utf-8")))
    return _seen(times[:, 0], times[:, 1], task.seconds, failed=0)


def h2load(task: Task, program: str) -> Seen:
    """Run h2load, one connection for each caller; at a rate one for all, or they call at once."""
    found = task.folder / "h2load.log"
    found.unlink(missing_ok=True)
    clients = _CALLERS if task.rate is None else 1
    rate = [] if task.rate is None else [f"--rps={task.rate:g}"]
    said = _run(
        [
            *(program, f"--clients={clients}", f"--max-concurrent-streams={_CALLERS // clients}"),
            *(f"--log-file={found}", f"--duration={task.seconds + 2}"),
            *(f"--data={task.folder / 'framed'}", *rate),
            *("--header=content-type: application/grpc", "--header=te: trailers"),
            f"http://{task.address}{_METHOD}",
        ]
    )
    match = re.search(r"(\d+) succeeded.*?traffic:.*?\((\d+)\) data", said, re.DOTALL)
    if match is None:
        raise RuntimeError(said)
    # Those in flight at the end have sent a part of their reply, or none.
    missing = int(match[1]) * task.reply_bytes - int(match[2])
    failed = max(0, round(missing / task.reply_bytes))
    columns = np.loadtxt(found, ndmin=2)
    return _seen(columns[:, 0] / 1e6, columns[:, 2] / 1e6, task.seconds, failed=failed)


def _seen(made: Any, took: Any, seconds: int, *, failed: int) -> Seen:
    """Reckon with the calls made in so many seconds, from one second after the first on."""
    first = float(made.min()) + 1
    took = took[(made >= first) & (made < first + seconds)]
    p50, p99 = np.percentile(took * 1e3, (50, 99)).tolist()
    return Seen(len(took) / seconds, round(p50, 3), round(p99, 3), failed)


def _run(command: Sequence[object], **environment: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own words
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr or done.stdout}")
    return done.stdout


def _summary(rounds: Sequence[Seen]) -> dict[str, Any]:
    """Return the median and the range of each figure."""
    told: dict[str, Any] = {}
    for name in ("calls_per_s", "p50_ms", "p99_ms"):
        values = [getattr(one, name) for one in rounds]
        told[name] = [round(statistics.median(values), 3), round(min(values), 3)]
        told[name].append(round(max(values), 3))
    return {**told, "failed": sum(one.failed for one in rounds)}


def _table(found: dict[str, Any]) -> list[str]:
    lines = ["| | calls/s | p50 ms | p99 ms | failed |", "|---|---|---|---|---|"]
    for load, by_name in found.items():
        for who, one in by_name.items():
            cells = [
                f"{middle:.4g} ({low:.4g} to {high:.4g})"
                for middle, low, high in (one[name] for name in ("calls_per_s", "p50_ms", "p99_ms"))
            ]
            lines.append(f"| {load}, {who} | {' | '.join(cells)} | {one['failed']} |")
    return lines


def run(
    generators: dict[str, Callable[[Task], Seen]], *, rate: float, rounds: int, seconds: int
) -> dict[str, Any]:
    """Run all of them in turn, several times; return their summaries by load and name."""
    seen: dict[str, dict[str, list[Seen]]] = {}
    request = _request()
    with (
        tempfile.TemporaryDirectory() as name,
        serving_process() as server,
        RawClient(server.address) as client,
    ):
        folder = Path(name)
        (folder / "request").write_bytes(request)
        (folder / "framed").write_bytes(b"\0" + struct.pack(">I", len(request)) + request)
        reply = client.stub.Evaluate(v1.EvaluateRequest.FromString(request))
        for _ in range(rounds):
            for load, wanted in ((f"{rate:g} calls/s", rate), (f"{_CALLERS} callers", None)):
                task = Task(server.address, folder, wanted, seconds, reply.ByteSize() + 5)
                for who, generate in generators.items():
                    one = generate(task)
                    seen.setdefault(load, {}).setdefault(who, []).append(one)
                    sys.stderr.write(f"{load}, {who}: {asdict(one)}\n")
    return {
        load: {who: _summary(each) for who, each in by_name.items()}
        for load, by_name in seen.items()
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--locust", default=sys.executable, help="an interpreter that has Locust")
    parser.add_argument("--h2load", default="h2load")
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    generators: dict[str, Callable[[Task], Seen]] = {
        "gradwire bench": bench,
        "Locust": lambda task: locust(task, arguments.locust),
        "h2load": lambda task: h2load(task, arguments.h2load),
    }
    found = run(generators, rate=arguments.rate, rounds=arguments.rounds, seconds=arguments.seconds)
    if arguments.json:
        text = json.dumps({"machine": machine.facts(), "found": found}, indent=1)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(_table(found)) + "\n")
    fixed = next(iter(found.values()))
    rates = [one["calls_per_s"][0] for one in fixed.values()]
    failed = sum(one["failed"] for each in found.values() for one in each.values())
    if failed:
        sys.exit(f"{failed} calls failed")
    if max(rates) > (1 + _APART) * min(rates):
        busy = f"{os.getloadavg()[0]:.1f} programs at once on {len(os.sched_getaffinity(0))} cores"
        told = ", ".join(f"{who} {rate:g}" for who, rate in zip(fixed, rates, strict=True))
        sys.exit(
            f"calls/s at the fixed rate are more than {_APART:.0%} apart: {told}. This machine "
            f"ran {busy} of late; callers who wait for each other fall behind on a busy one"
        )


if __name__ == "__main__":
    main()
