"""`gradwire evaluate`: a .npy file in, a .npy file out, both mapped."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import numpy.typing as npt

from gradwire import Client
from gradwire.cli import exits
from gradwire.cli.connection import Connection
from gradwire.cli.exits import INVALID, CommandError
from gradwire.cli.options import (
    INPUT_FILE,
    OUTPUT_FILE,
    SECONDS,
    attribute_option,
    check_folder,
    json_option,
    operator_from,
    operator_kind,
    operator_option,
    read_shape,
    server_options,
)
from gradwire.cli.output import ProgressBar
from gradwire.ops import Operator
from gradwire.tensors import DATA_TYPES

EXAMPLE = """\b
Example:
  gradwire evaluate diff_dst.npy diff_src.npy --op interpolate_backward \\
      --attr mode=bilinear --attr data_format=NCX --output-shape 8,64,56,56
"""


@click.command(short_help="Evaluate an operator on a .npy file.", epilog=f"{EXAMPLE}\n{exits.HELP}")
@click.argument("source", metavar="INPUT.npy", type=INPUT_FILE)
@click.argument("result", metavar="OUTPUT.npy", type=OUTPUT_FILE, callback=check_folder)
@operator_option()
@attribute_option
@click.option(
    "--output-shape",
    callback=read_shape,
    metavar="N,N,...",
    help="Shape of the result; may be left out where attributes determine it.",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16"]),
    help="Read the elements of INPUT.npy, 2 bytes each, as this type: .npy has no name for it.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    metavar="SECONDS",
    help="Time for the whole evaluation. Without it, 60 s without progress end it.",
)
@click.option(
    "--split",
    is_flag=True,
    help="Let all servers of --target share an evaluation of more than 4 MiB, with the same bits.",
)
@server_options()
@json_option
def evaluate(*, server: Connection, as_json: bool, **options: Any) -> None:
    """Evaluate one operator on the tensor in INPUT.npy and write its result to OUTPUT.npy.

    Both files are mapped, not read: tensors may be larger than memory. OUTPUT.npy appears complete
    or not at all.
    """
    run(EvaluateArguments(**options), server, as_json=as_json)


Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateArguments:
    """Arguments of an evaluation; None for omitted ones."""

    source: Path
    result: Path
    operator: str
    attributes: tuple[str, ...]
    output_shape: tuple[int, ...] | None
    dtype: str | None
    timeout_s: float | None
    split: bool


def run(job: EvaluateArguments, connection: Connection, *, as_json: bool) -> None:
    """Evaluate, write the file, and report the rates."""
    kind = operator_kind(job.operator)
    operator = operator_from(kind, job.attributes)
    if kind.output_required and job.output_shape is None:
        raise CommandError(
            f"--output-shape is missing; no attribute of {kind.name} tells it",
            code=INVALID,
        )
    array = mapped(job.source, job.dtype)
    _check_size(job.output_shape, array.dtype)
    result = _regular(job.result)
    with connection.client(split=job.split) as client, _complete(result) as part:
        start = time.monotonic()
        shape = _evaluate(client, operator, array, job, part)
        seconds = time.monotonic() - start
    facts = _facts(operator, array, shape, seconds)
    if as_json:
        click.echo(json.dumps({**facts, "result": str(job.result)}))
    else:
        click.echo(_sentence(facts), file=sys.stderr)


def mapped(path: Path, dtype: str | None) -> Array:
    """Map a file of numbers; dtype is "bfloat16" for that type, which .npy cannot name."""
    try:
        array: Array = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise CommandError(f"{path} is not a .npy file of numbers: {error}", code=INVALID) from None
    if dtype == "bfloat16":
        if array.dtype.itemsize != np.dtype(ml_dtypes.bfloat16).itemsize:
            raise CommandError(
                f"--dtype bfloat16: {path} holds {array.dtype}; give 2-byte elements",
                code=INVALID,
            )
        return array.view(ml_dtypes.bfloat16)
    if array.dtype == np.dtype("V2"):
        raise CommandError(
            f"{path} holds 2-byte elements of no named type; if they are bfloat16, "
            "give --dtype bfloat16",
            code=INVALID,
        )
    if array.dtype.newbyteorder("=") not in DATA_TYPES:
        raise CommandError(
            f"{path} holds {array.dtype}; give one of {', '.join(map(str, DATA_TYPES))}",
            code=INVALID,
        )
    return array


def _check_size(shape: tuple[int, ...] | None, dtype: np.dtype[Any]) -> None:
    """Refuse a result that no file can hold, since NumPy counts its bytes in 64 bits."""
    if shape is not None and math.prod(shape) * dtype.itemsize > sys.maxsize // 2:
        raise CommandError(
            f"--output-shape: {shape} of {dtype} is larger than files can be; give shorter lengths",
            code=INVALID,
        )


def _regular(path: Path) -> Path:
    """Return the resolved path of a result; refuse to replace anything but a file."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise CommandError(f"{path} is no regular file; give another name", code=INVALID)
    return path


@contextmanager
def _complete(path: Path) -> Generator[Path]:
    """Yield a file beside `path` that takes its place if the block succeeds; else it goes away."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        _regular(path)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _evaluate(
    client: Client, operator: Operator, array: Array, job: EvaluateArguments, part: Path
) -> tuple[int, ...]:
    """Write the result to the file `part`; return its shape."""
    if job.output_shape is None:
        with ProgressBar(array.nbytes) as progress:
            result = client.evaluate(
                operator, array, timeout_s=job.timeout_s, on_progress=progress.sent
            )
        with part.open("xb") as file:
            np.lib.format.write_array(file, result)
        return result.shape
    out = _allocated(part, array.dtype, job.output_shape)
    with ProgressBar(array.nbytes + out.nbytes) as progress:
        client.evaluate(
            operator,
            array,
            output_shape=job.output_shape,
            out=out,
            timeout_s=job.timeout_s,
            on_progress=progress.moved,
        )
    return job.output_shape


def _allocated(part: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    try:
        out: Array = np.lib.format.open_memmap(part, mode="w+", dtype=dtype, shape=shape)
        # Taken now, a full disk is an error here; later it would be a signal that ends the program.
        if hasattr(os, "posix_fallocate"):
            with part.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, part.stat().st_size)
    except ValueError as error:
        raise CommandError(f"--output-shape: {shape} does not do: {error}", code=INVALID) from None
    except OSError as error:
        size = _amount(math.prod(shape) * dtype.itemsize)
        raise CommandError(f"no room for {size} in {part.parent}: {error.strerror}") from None
    return out


def _facts(
    operator: Operator, array: Array, shape: tuple[int, ...], seconds: float
) -> dict[str, Any]:
    received = math.prod(shape) * array.dtype.itemsize
    return {
        "operator": operator.name,
        "dtype": str(array.dtype),
        "input_shape": list(array.shape),
        "output_shape": list(shape),
        "bytes_up": array.nbytes,
        "bytes_down": received,
        "seconds": round(seconds, 6),
        "mb_per_s_up": round(array.nbytes / seconds / 1e6, 3),
        "mb_per_s_down": round(received / seconds / 1e6, 3),
    }


def _sentence(facts: dict[str, Any]) -> str:
    shapes = [tuple(facts[name]) for name in ("input_shape", "output_shape")]
    seconds = facts["seconds"]
    moves = [
        f"{_amount(facts[name])} {way} at {_amount(facts[name] / seconds)}/s"
        for name, way in (("bytes_up", "up"), ("bytes_down", "down"))
    ]
    return (
        f"{facts['operator']}: {facts['dtype']} {shapes[0]} to {shapes[1]} in {seconds:.3f} s, "
        f"{', '.join(moves)}"
    )


def _amount(size: float) -> str:
    """Write a number of bytes in a unit that leaves few digits."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(len(units) - 1, int(math.log10(max(size, 1)) / 3))
    return f"{size / 1000**power:.1f} {units[power]}"
