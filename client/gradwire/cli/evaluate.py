"""`gradwire evaluate`: a .npy file in, a .npy file out, both mapped."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np

from gradwire.cli.connection import Connection
from gradwire.cli.options import (
    INPUT_FILE,
    OutputFile,
    json_option,
    operator_options,
    output_shape_option,
    seconds_option,
    server_options,
)
from gradwire.cli.output import HELP, CommandError, InvalidUsage
from gradwire.ops import Operator
from gradwire.tensors import DATA_TYPES, Array, DType, Shape

EXAMPLE = """\b
Example:
  gradwire evaluate diff_dst.npy diff_src.npy --op interpolate_backward \\
      --attr mode=bilinear --attr data_format=NCX --output-shape 8,64,56,56
"""


@click.command(short_help="Evaluate an operator on a .npy file.", epilog=f"{EXAMPLE}\n{HELP}")
@click.argument("source", metavar="INPUT.npy", type=INPUT_FILE)
@click.argument("result", metavar="OUTPUT.npy", type=OutputFile())
@operator_options
@output_shape_option
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16"]),
    help="Read the elements of INPUT.npy, 2 bytes each, as this type: .npy has no name for it.",
)
@seconds_option(
    "--timeout",
    "timeout_s",
    help="Time for the whole evaluation. Without it, 60 s without progress end it.",
)
@click.option(
    "--split",
    is_flag=True,
    help="Let all servers of --target share an evaluation of more than 4 MiB, with the same bits.",
)
@server_options()
@json_option
def evaluate(
    *,
    source: Path,
    result: Path,
    operator: Operator,
    output_shape: Shape | None,
    dtype: str | None,
    timeout_s: float | None,
    split: bool,
    server: Connection,
    as_json: bool,
) -> None:
    """Evaluate one operator on INPUT.npy; write the result to OUTPUT.npy.

    Both files are mapped, not read: tensors may be larger than memory. OUTPUT.npy appears complete
    or not at all.
    """
    if operator.output_required and output_shape is None:
        raise InvalidUsage(f"--output-shape is missing; no attribute of {operator.name} tells it")
    array = mapped(source, dtype)
    # NumPy counts the bytes of a file in 64 bits.
    if math.prod(output_shape or ()) * array.itemsize > sys.maxsize // 2:
        message = f"--output-shape: {output_shape} of {array.dtype} is larger than files can be"
        raise InvalidUsage(f"{message}; give shorter lengths")
    # Only a regular file may be replaced.
    path = result.resolve()
    if path.exists() and not path.is_file():
        raise InvalidUsage(f"{path} is not a regular file; give another name")
    if split and server.target is None:
        raise InvalidUsage("--split needs --target; give that too")
    with server.client(split=split) as client, _complete(path) as part:
        out = None if output_shape is None else _allocated(part, array.dtype, output_shape)
        # For a result of unknown size only sent bytes are counted.
        length = array.nbytes + (0 if out is None else out.nbytes)
        bar: Any = click.progressbar(length=length, file=sys.stderr, hidden=not sys.stderr.isatty())

        def show(sent: int, received: int) -> None:
            bar.update((sent if out is None else sent + received) - bar.pos)

        start = time.monotonic()
        with bar:
            done = client.evaluate(
                operator,
                array,
                output_shape=output_shape,
                out=out,
                timeout_s=timeout_s,
                on_progress=show,
            )
        if out is None:
            with part.open("xb") as file:
                np.lib.format.write_array(file, done)
        seconds = time.monotonic() - start
    facts = {
        "operator": operator.name,
        "dtype": array.dtype.name,
        "input_shape": array.shape,
        "output_shape": done.shape,
        "bytes_up": array.nbytes,
        "bytes_down": done.nbytes,
        "seconds": round(seconds, 6),
        "mb_per_s_up": round(array.nbytes / seconds / 1e6, 3),
        "mb_per_s_down": round(done.nbytes / seconds / 1e6, 3),
        "result": str(result),
    }
    sentence = (
        "{operator}: {dtype} {input_shape} to {output_shape} in {seconds:.3f} s, "
        "{bytes_up} bytes up at {mb_per_s_up:.3g} MB/s, "
        "{bytes_down} bytes down at {mb_per_s_down:.3g} MB/s"
    )
    click.echo(json.dumps(facts) if as_json else sentence.format_map(facts), err=not as_json)


def mapped(path: Path, dtype: str | None) -> Array:
    """Map a file of numbers.

    dtype is "bfloat16" for that type, which .npy cannot name.
    """
    try:
        array: Array = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise InvalidUsage(f"{path} is not a .npy file of numbers: {error}") from None
    if dtype == "bfloat16":
        if array.itemsize != 2:  # noqa: PLR2004
            message = f"--dtype bfloat16: {path} holds {array.dtype}; give 2-byte elements"
            raise InvalidUsage(message)
        return array.view(ml_dtypes.bfloat16)
    if array.dtype.newbyteorder("=") not in DATA_TYPES:
        hint = "; if they are bfloat16, give --dtype bfloat16" if array.dtype == "V2" else ""
        wanted = f"give one of {', '.join(map(str, DATA_TYPES))}{hint}"
        raise InvalidUsage(f"{path} holds {array.dtype}; {wanted}")
    return array


@contextmanager
def _complete(path: Path) -> Generator[Path]:
    """Yield a temporary file beside `path`.

    It replaces `path` if the block succeeds, and is deleted otherwise.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _allocated(part: Path, dtype: DType, shape: Shape) -> Array:
    try:
        out: Array = np.lib.format.open_memmap(part, mode="w+", dtype=dtype, shape=shape)
        # The disk space is taken now: a full disk is an error here; later it would be a signal that
        # ends the program.
        if hasattr(os, "posix_fallocate"):
            with part.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, part.stat().st_size)
    except ValueError as error:
        raise InvalidUsage(f"--output-shape: {shape} is not possible: {error}") from None
    except OSError as error:
        size = f"{math.prod(shape) * dtype.itemsize / 1e6:.1f} MB"
        raise CommandError(f"no room for {size} in {part.parent}: {error.strerror}") from None
    return out
