"""Rules of single attributes that operators of any framework may use, and how words become them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gradwire import ops, v1
from gradwire.cli.options import operator_from
from gradwire.cli.output import InvalidUsage
from gradwire.errors import InvalidRequestError
from gradwire.ops._base import (
    Operator,
    attribute,
    is_default,
    operator_class,
    rule_of,
)

TENTH = float(np.float32(0.1))


@operator_class
class Every(Operator):
    """An operator of no framework, with an attribute of each kind."""

    name = "every"

    flag: bool = attribute("A flag.", default=False)
    maybe: bool | None = attribute("A flag.", default=None, default_text="not given")
    single: float = attribute("One.", default=0.0)
    double: float | None = attribute(
        "One.", default=None, bits=64, positive=True, default_text="none"
    )
    doubles: float | Sequence[float] = attribute(
        "Some.", default=(), most=3, bits=64, default_text="none"
    )
    pads: int | Sequence[int] = attribute(
        "Some.", default=(), most=3, bits=64, least=-2, default_text="none"
    )


KEPT: list[tuple[str, Any, object]] = [
    ("flag", True, True),
    ("flag", np.bool_(True), True),  # noqa: FBT003
    ("maybe", None, None),
    ("maybe", False, False),
    ("single", 0.1, TENTH),
    ("single", np.float16(2), 2.0),
    ("single", 3, 3.0),
    ("double", 0.1, 0.1),
    ("double", None, None),
    ("doubles", 0.1, (0.1,)),
    ("doubles", np.array([0.1, 2]), (0.1, 2.0)),
    ("doubles", np.float64(5), (5.0,)),
    ("pads", 0, (0,)),
    ("pads", np.int8(-2), (-2,)),
    ("pads", (0, 1), (0, 1)),
    ("pads", np.array([2]), (2,)),
]


@pytest.mark.parametrize(("name", "given", "kept"), KEPT, ids=repr)
def test_a_value_is_kept_as_the_wire_carries_it(name: str, given: Any, kept: object) -> None:
    value = getattr(Every(**{name: given}), name)
    assert value == kept
    assert type(value) is type(kept)


REFUSED: list[tuple[str, Any, str]] = [
    ("flag", None, "is None; give True or False"),
    ("flag", 1, "is 1 (int); give True or False"),
    ("maybe", "true", "is 'true' (str); give True or False"),
    ("single", None, "is None; give a number, finite in float32"),
    ("single", 1e39, "is 1e+39 (float); give a number, finite in float32"),
    ("single", True, "is True (bool); give a number"),
    ("single", "1", "is '1' (str); give a number"),
    ("single", (1.0,), "is (1.0,) (tuple); give a number"),
    ("double", 0, "is 0 (int); give a number, finite and above 0 in float64"),
    ("double", np.nan, "is nan"),
    ("doubles", True, "is True (bool); give numbers"),
    ("pads", -3, "is -3 (int); give integers, each from -2 to 2**63 - 1"),
    ("pads", (0, True), "is True (bool); give integers"),
    ("pads", 1.0, "is 1.0 (float); give integers"),
]


@pytest.mark.parametrize(("name", "given", "words"), REFUSED, ids=str)
def test_a_value_of_another_kind_is_refused(name: str, given: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        Every(**{name: given})
    assert (refused.value.field or "").startswith(f"operator.every.{name}")
    assert refused.value.description.startswith(words)


def test_minus_zero_is_told_from_a_default_of_zero() -> None:
    (single,) = (each for each in dataclasses.fields(Every) if each.name == "single")
    assert is_default(single, 0.0)
    assert not is_default(single, -0.0)
    assert repr(Every(single=-0.0)) == "Every(single=-0.0)"


WORDS: list[tuple[str, object]] = [
    ("flag=true", True),
    ("flag=False", False),
    ("maybe=false", False),
    ("single=0.1", TENTH),
    ("double=1e-3", 1e-3),
    ("doubles=0.1", (0.1,)),
    ("doubles=0.1,2,", (0.1, 2.0)),
    ("pads=-1,0,1", (-1, 0, 1)),
]


@pytest.mark.parametrize(("assignment", "value"), WORDS)
def test_the_command_line_reads_every_kind(assignment: str, value: object) -> None:
    assert getattr(operator_from(Every, [assignment]), assignment.partition("=")[0]) == value


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("flag=yes", "flag: is 'yes' (str); give True or False"),
        ("single=x", "--attr single: is 'x'; give a number, finite in float32"),
        (
            "pads=1,x",
            "--attr pads: is '1,x'; give integers, each from -2 to 2**63 - 1",
        ),
    ],
)
def test_the_command_line_refuses_what_is_of_no_kind(assignment: str, words: str) -> None:
    with pytest.raises((InvalidUsage, InvalidRequestError)) as refused:
        operator_from(Every, [assignment])
    assert str(refused.value).startswith(words)


def test_every_rule_names_its_type() -> None:
    types = {each.name: rule_of(each).type_name for each in dataclasses.fields(Every)}
    assert types == {
        "flag": "bool",
        "maybe": "bool",
        "single": "float",
        "double": "double",
        "doubles": "double[]",
        "pads": "int64[]",
    }


def test_a_forward_message_takes_one_value_of_what_only_a_gradient_reads() -> None:
    follow = v1.TorchInterpolate.FOLLOW_FORWARD_ADJOINT
    message = v1.TorchInterpolate(size=(2,), follow=follow)
    forward = ops.from_message(v1.Operator(torch_interpolate=message))
    assert forward == ops.TorchInterpolate(size=2)
    message.follow = v1.TorchInterpolate.FOLLOW_BACKWARD_OP
    with pytest.raises(InvalidRequestError, match="takes 'forward_adjoint' only"):
        ops.from_message(v1.Operator(torch_interpolate=message))
    assert ops.from_message(v1.Operator(torch_upsample_backward=message)) == (
        ops.TorchUpsampleBackward(size=2)
    )


def test_false_travels_where_absent_means_something_of_its_own() -> None:
    operator = ops.TorchInterpolate(mode="linear", size=2, align_corners=False)
    message = ops.to_message(operator)
    assert message.torch_interpolate.HasField("align_corners")
    assert ops.from_message(message) == operator
    operator = dataclasses.replace(operator, align_corners=None)
    assert not ops.to_message(operator).torch_interpolate.HasField("align_corners")
