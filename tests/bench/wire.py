"""What the wire costs, beside bare grpcio servers and beside PyTorch on the spot.

    python -m bench.wire STAGE ... [--rounds N] [--json FILE]

tiny      12 x 64 numbers: latency and rate beside a bare echo of as many bytes
large     25.7 MB up, 6.4 MB down: beside a plain protobuf server around the same compute
identity  25.7 MB up and down on a stream: beside a bare server that returns raw bytes
bidi      67.1 MB up and down on a stream of protobuf's messages: beside a bare bidi server
local     client.evaluate beside PyTorch's own backward on as many cores, where it is installed
kinds     bare servers of other kinds, among themselves
options   bare servers with other options of grpc's core at both ends, among themselves
chunks    streams with other chunks and slabs, among themselves
threads   streams with other numbers of compute threads, among themselves
malloc    streams with more or less memory kept by malloc, among themselves
copies    bytes that the server's process copies for a stream, counted; needs a C compiler
timeline  what one stream of `large` sends, computes and receives, and when

Servers run in processes of their own, the client in this one, all on the same cores. Rates are of
calls per second, times in milliseconds, processor time for each call; the last two columns are
ratios to the first contestant in the same round.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from bench import machine, wire_choices, wire_stages
from bench.wire_copies import copies
from bench.wire_rounds import Rows
from bench.wire_timeline import timeline

_STAGES: dict[str, Callable[[int], dict[str, Rows]]] = {
    "tiny": wire_stages.tiny,
    "large": wire_stages.large,
    "identity": wire_stages.identity,
    "bidi": wire_stages.bidi,
    "local": wire_stages.local,
    "kinds": wire_choices.kinds,
    "options": wire_choices.options,
    "chunks": wire_choices.chunks,
    "threads": wire_choices.threads,
    "malloc": wire_choices.malloc,
}
_TEXTS: dict[str, Callable[[int], str]] = {"copies": lambda _: copies(), "timeline": timeline}
_COLUMNS = ("rate", "p50_ms", "p99_ms", "server_ms", "client_ms", "rate_ratio", "p50_ratio")


def print_rows(report: dict[str, Rows]) -> None:
    """Print the rows of a stage, each part under its title."""
    for title, rows in report.items():
        width = max(map(len, rows)) + 2
        heads = "".join(f"{name:>12}" for name in _COLUMNS)
        sys.stdout.write(f"\n{title}\n{'':{width}}{heads}\n")
        for name, row in rows.items():
            cells = "".join(f"{row[column]:12.3f}" for column in _COLUMNS)
            sys.stdout.write(f"{name:{width}}{cells}\n")
    sys.stdout.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("stages", nargs="+", choices=[*_STAGES, *_TEXTS], metavar="STAGE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report: dict[str, dict[str, Rows]] = {}
    for stage in arguments.stages:
        if stage in _TEXTS:
            sys.stdout.write(_TEXTS[stage](arguments.rounds))
            continue
        report[stage] = _STAGES[stage](arguments.rounds)
        print_rows(report[stage])
    if arguments.json:
        record = {"machine": machine.facts(), "rounds": arguments.rounds, "medians": report}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
