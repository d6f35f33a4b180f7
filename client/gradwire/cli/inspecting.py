"""The commands that look into operators: explain, compare and check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np

from gradwire.cli import checking, comparing, exits, explaining
from gradwire.cli.attributes import operator_from, operator_kind
from gradwire.cli.candidate import load
from gradwire.cli.check_cases import VALUES
from gradwire.cli.connection import Connection
from gradwire.cli.options import (
    INPUT_FILE,
    OUTPUT_FILE,
    Decorated,
    attribute_option,
    check_picture,
    dtype_option,
    json_option,
    operator_option,
    read_shape,
    server_options,
)
from gradwire.cli.tables import Call
from gradwire.ops import Operator


def shape_options(*, input_required: bool) -> Callable[[Decorated], Decorated]:
    """Add --input-shape and --output-shape, the shapes of the operator as it is called."""

    def decorate(command: Decorated) -> Decorated:
        with_output = click.option(
            "--output-shape",
            callback=read_shape,
            metavar="N,N,...",
            help="Shape of the result; may be left out where attributes determine it.",
        )(command)
        return click.option(
            "--input-shape",
            callback=read_shape,
            required=input_required,
            metavar="N,N,...",
            help="Shape of what the operator is given; for a gradient, that of the forward's "
            "output.",
        )(with_output)

    return decorate


class _Grouped(click.Command):
    """A command that is told which --attr belong to which --op: those behind it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the order in which options stand, which click forgets."""
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_ORDER] = [each.name for each in order]
        return super().parse_args(ctx, args)


_ORDER = "gradwire.order"


def _grouped(
    order: Sequence[str], names: Sequence[str], attributes: Sequence[str]
) -> tuple[Operator, ...]:
    """Make operators of names, each with the attributes that stand behind it."""
    groups: list[tuple[str, list[str]]] = []
    rest_of_names, rest_of_attributes = iter(names), iter(attributes)
    for option in order:
        if option == "operator":
            groups.append((next(rest_of_names), []))
        elif option == "attributes":
            given = next(rest_of_attributes)
            if not groups:
                message = f"--attr: {given!r} stands before any --op; give it behind its own"
                raise exits.CommandError(message, code=exits.INVALID)
            groups[-1][1].append(given)
    return tuple(operator_from(operator_kind(name), given) for name, given in groups)


EXPLAIN_EXAMPLE = """\b
Example:
  gradwire explain --op interpolate_backward --attr mode=bilinear \\
      --attr data_format=NCX --input-shape 1,1,8 --output-shape 1,1,4
"""


@click.command(
    short_help="Show an operator's coordinates, taps and weights.",
    epilog=f"{EXPLAIN_EXAMPLE}\n{exits.HELP}",
)
@operator_option()
@attribute_option
@shape_options(input_required=True)
@dtype_option(text="Type of the tensors; few operators' tables depend on it.")
@click.option("--axis", type=click.IntRange(min=0), help="The only axis to tell about.")
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=24,
    show_default=True,
    help="Rows of each table to print, from both of its ends; 0 for all.",
)
@click.option(
    "--output",
    "picture",
    type=OUTPUT_FILE,
    callback=check_picture,
    help="Picture to draw, as .png, .svg or .pdf.",
)
@json_option
def explain(
    *,
    operator: str,
    attributes: tuple[str, ...],
    dtype: np.dtype[Any],
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...] | None,
    **showing: Any,
) -> None:
    """Show what an operator does along each axis: coordinates, taps and weights.

    The tables are those of the forward operator, which a gradient applies the other way round. They
    come from the server package of this installation; no server is called.
    """
    made = operator_from(operator_kind(operator), attributes)
    call = Call(made, dtype, input_shape, output_shape)
    explaining.run(call, explaining.Showing(**showing))


COMPARE_EXAMPLE = """\b
Example:
  gradwire compare --op interpolate_backward --attr mode=nearest \\
      --attr data_format=NCX --op dml_resample_grad \\
      --attr interpolation_mode=nearest --input-shape 1,1,2 --output-shape 1,1,4
"""


@click.command(
    cls=_Grouped,
    short_help="Compare two operators, or one and a file, bit by bit.",
    epilog=f"{COMPARE_EXAMPLE}\n{exits.HELP}",
)
@operator_option(multiple=True, text="Once for each of the two; the --attr behind it are its own.")
@attribute_option
@click.option(
    "--against",
    type=INPUT_FILE,
    metavar="FILE.npy",
    help="A result from elsewhere, in place of the second operator.",
)
@click.option(
    "--input",
    "source",
    type=INPUT_FILE,
    metavar="FILE.npy",
    help="What the operators are given. Without it, random normal numbers.",
)
@shape_options(input_required=False)
@dtype_option(text="Type of random numbers; with files only bfloat16 is read from here.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@server_options()
@json_option
@click.pass_context
def compare(
    context: click.Context,
    /,
    *,
    operator: tuple[str, ...],
    attributes: tuple[str, ...],
    server: Connection,
    as_json: bool,
    **options: Any,
) -> int:
    """Give the same input to two operators, and tell whether the results have equal bits.

    If not, tell how far they are apart, the first element that differs, and why: its coordinates,
    taps and weights in both. Exit with 0 if they are equal, with 9 if not.
    """
    operators = _grouped(context.meta[_ORDER], operator, attributes)
    asked = comparing.Comparison(operators=operators, **options)
    return comparing.run(asked, server, wants_json=as_json)


CHECK_EXAMPLE = """\b
Example:
  gradwire check kernels.py:upsample_backward --op interpolate_backward \\
      --attr mode=bilinear --attr data_format=NCX --tolerance 2
"""


@click.command(
    short_help="Check a function of your own against an operator.",
    epilog=f"{CHECK_EXAMPLE}\n{exits.HELP}",
)
@click.argument("name", metavar="MODULE:FUNCTION")
@operator_option()
@attribute_option
@dtype_option(multiple=True, text="Type of the tensors; once for each.")
@click.option(
    "--rank",
    "ranks",
    type=click.IntRange(min=1, max=8),
    multiple=True,
    help="Number of axes; once for each. Without it, 4, or else the first that fits.",
)
@click.option(
    "--values",
    type=click.Choice(list(VALUES)),
    multiple=True,
    help="What to fill tensors with; once for each. Without it, all.",
)
@click.option(
    "--tolerance",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="ULPS",
    help="How far a result may be off, in ulps of the same sum over magnitudes.",
)
@click.option("--torch", is_flag=True, help="Call the function with torch tensors.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--failures",
    "most",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Failures to tell.",
)
@server_options()
@json_option
def check(
    *,
    name: str,
    operator: str,
    attributes: tuple[str, ...],
    values: tuple[str, ...],
    torch: bool,
    server: Connection,
    as_json: bool,
    **options: Any,
) -> int:
    """Check a function of your own against an operator, over cases that kernels get wrong.

    FUNCTION is called with a gradient, a NumPy array of any strides, and the shape of its result, a
    tuple; it returns an array of that shape and of the gradient's type. With --torch both are
    tensors. For a forward operator it is given the input in place of a gradient. MODULE may be
    the name of a file that ends in .py. Leave sizes out, which each case has of its own.

    Each failure is shrunk to the smallest case that fails alike. Exit with 0 if there is none, with
    9 if there is one.
    """
    made = operator_from(operator_kind(operator), attributes)
    candidate = load(name, torch=torch)
    told = values or tuple(VALUES)
    asked = checking.Check(name=name, candidate=candidate, operator=made, values=told, **options)
    return checking.run(asked, server, wants_json=as_json)
