"""Looks for bytes that break a law, guided by what they reach of the code.

    PYTHONPATH=tests python -m fuzz.run [--seconds 600] [--json FILE] [--keep] [TARGET ...]

Each target has its share of the time, in a process of its own. Starts with what tests/fuzz/corpus
holds; --keep adds to it what reached more, as long as that is short. Bytes that break a law are
printed, and the status is 1 then. Needs atheris, for which there are wheels for Linux.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).with_name("corpus")
NAMES = tuple(sorted(each.stem for each in CORPUS.glob("*.txt")))
_MOST_KEPT = 64
_LONGEST_KEPT = 256
# A single input, and what a process may take.
_LIMITS = ("-timeout=20", "-rss_limit_mb=2048", "-max_len=4096", "-print_final_stats=1")


def read(name: str) -> list[bytes]:
    """Return the inputs that are kept of a target, one in each line of hexadecimals."""
    lines = (CORPUS / f"{name}.txt").read_text().splitlines()
    return [bytes.fromhex(line) for line in lines]


def run(name: str, seconds: int, *, keep: bool) -> dict[str, Any]:
    """Fuzz one target for a while in a process of its own; return what came of it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "found")
        folder.mkdir()
        kept = read(name)
        for number, data in enumerate(kept):
            (folder / f"kept-{number}").write_bytes(data)
        limits = (f"-max_total_time={seconds}", f"-artifact_prefix={place}/broken-", *_LIMITS)
        told = subprocess.run(  # noqa: S603 - this very module
            [sys.executable, "-m", "fuzz.run", "--target", name, str(folder), *limits],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if keep and not told.returncode:
            found = {each.read_bytes() for each in folder.iterdir()} - set(kept)
            short = sorted((each for each in found if len(each) <= _LONGEST_KEPT), key=len)
            written = sorted({each.hex() for each in (*kept, *short[:_MOST_KEPT])})
            lines = "".join(f"{line}\n" for line in sorted(written, key=len))
            (CORPUS / f"{name}.txt").write_text(lines)
        broken = [each.read_bytes().hex() for each in Path(place).glob("broken-*")]
    if told.returncode:
        sys.stderr.write(told.stderr[-4000:])
    figures = dict(re.findall(r"^stat::(\w+):\s*(\d+)$", told.stderr, re.MULTILINE))
    return {
        "seconds": seconds,
        "executions": int(figures.get("number_of_executed_units", 0)),
        "features": max(map(int, re.findall(r" ft: (\d+)", told.stderr)), default=0),
        "peak_rss_mib": int(figures.get("peak_rss_mb", 0)),
        "status": told.returncode,
        "broken": broken,
    }


def main() -> None:
    if sys.argv[1:2] == ["--target"]:
        # A process of its own, as run() has told it; it never returns.
        atheris: Any = import_module("atheris")
        with atheris.instrument_imports(include=["gradwire", "gradwire_server"]):
            targets = import_module("fuzz.targets").TARGETS
        atheris.Setup([sys.argv[0], *sys.argv[3:]], targets[sys.argv[2]])
        atheris.Fuzz()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", default=NAMES)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    if find_spec("atheris") is None:
        sys.stderr.write("fuzz: skipped, atheris is not installed; some Pythons have no wheel\n")
        sys.exit(77)  # as .ci/run has it: a stage that skips itself
    share = max(1, arguments.seconds // len(arguments.targets))
    report: dict[str, Any] = {}
    for name in arguments.targets:
        report[name] = run(name, share, keep=arguments.keep)
        sys.stderr.write(f"{name}: {report[name]}\n")
    text = json.dumps(report, indent=2)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    if any(each["status"] or not each["executions"] for each in report.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
