"""Inputs of the fuzzers that are kept: a file for each target, a line in hexadecimals for each."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("corpus")


def read(name: str) -> list[bytes]:
    """Return the inputs that are kept of a target."""
    return [bytes.fromhex(line) for line in _file(name).read_text().splitlines()]


def write(name: str, inputs: list[bytes]) -> None:
    """Keep these inputs of a target."""
    lines = sorted((each.hex() for each in set(inputs)), key=lambda line: (len(line), line))
    _file(name).write_text("".join(f"{line}\n" for line in lines))


def _file(name: str) -> Path:
    return FOLDER / f"{name}.txt"
