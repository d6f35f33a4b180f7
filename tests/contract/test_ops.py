"""An operator is a value: checked, kept exactly, carried by its message, refused in plain words."""

import copy
import dataclasses
import pickle
import pydoc
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import ops, v1
from gradwire.cli.options import operator_from
from gradwire.errors import InvalidRequestError
from gradwire.ops._base import Choice, Operator, attribute, is_default, operator_class, rule_of
from support.oracles.dialect_tables import TABLES

FLOAT32_MAX = float(np.finfo(np.float32).max)
NEAREST, LINEAR = list(v1.DmlInterpolationMode.values())[1:]
FORWARD, SWAPPED = list(v1.DmlOffsetConvention.values())[1:]

# Operators of every dialect as the laws draw them; and numbers at the ends of their types.
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SCALES = st.lists(FLOATS.map(abs).filter(bool), max_size=3)
operators = st.one_of(
    *(table.cases.flatmap(lambda case: st.sampled_from(case.pair)) for table in TABLES.values()),
    st.builds(
        ops.DmlResampleGrad,
        interpolation_mode=st.just("nearest"),
        scales=SCALES,
        input_pixel_offsets=st.lists(FLOATS, max_size=8),
        offset_convention=st.sampled_from(["forward", "swapped"]),
    ),
    st.builds(
        ops.Interpolate,
        mode=st.sampled_from(["bilinear", "trilinear"]),
        sizes=st.lists(st.integers(1, 2**63 - 1), max_size=3),
        scales=SCALES,
    ),
)


@given(operators)
def test_a_message_carries_an_operator_there_and_back(operator):
    wire = ops.to_message(operator).SerializeToString()
    assert ops.from_message(v1.Operator.FromString(wire)) == operator


@given(operators)
def test_an_operator_survives_pickle_copy_hash_and_repr(operator):
    for twin in (pickle.loads(pickle.dumps(operator)), copy.deepcopy(operator)):  # noqa: S301
        assert twin == operator
        assert hash(twin) == hash(operator)
    assert eval(repr(operator), dict(vars(ops))) == operator  # noqa: S307


def test_float32_attributes_are_shown_with_the_digits_that_tell_them():
    resize = ops.OnnxResize(scales=(0.1, 3), cubic_coeff_a=-0.3)
    assert repr(resize) == "OnnxResize(cubic_coeff_a=-0.3, scales=(0.1, 3.0))"
    assert resize.shown()["scales"] == (0.1, 3.0)
    double = ops.OpenvinoInterpolate(mode="cubic", cube_coeff=float(np.float32(0.1)))
    assert double.shown()["cube_coeff"] == float(np.float32(0.1))


@given(st.floats(allow_nan=False), st.sampled_from(["scales", "input_pixel_offsets"]))
def test_numbers_are_kept_exactly_as_float32_or_refused(number, name):
    with np.errstate(over="ignore"):
        rounded = float(np.float32(number))
    valid = np.isfinite(rounded) and (rounded > 0 or name != "scales")
    given_numbers = {name: [number]}
    if valid:
        operator = ops.DmlResampleGrad(interpolation_mode="linear", **given_numbers)
        assert getattr(operator, name) == (rounded,)
    else:
        with pytest.raises(InvalidRequestError) as caught:
            ops.DmlResampleGrad(interpolation_mode="linear", **given_numbers)
        assert caught.value.field == f"operator.dml_resample_grad.{name}[0]"


def test_defaults_are_those_of_the_schema_and_do_not_travel():
    explicit = ops.InterpolateBackward(
        mode="linear", coordinate_transformation_mode="half_pixel", data_format="NXC", sizes=()
    )
    sent = v1.Operator(interpolate_backward=v1.Interpolate(mode=v1.Interpolate.MODE_LINEAR))
    assert ops.from_message(sent) == explicit
    assert ops.to_message(explicit) == sent


@pytest.mark.parametrize("kind", ops.OPERATORS.values(), ids=lambda kind: kind.name)
def test_help_describes_every_attribute(kind):
    told = " ".join(pydoc.plain(pydoc.render_doc(kind)).replace("|", " ").split())
    attributes = ops.describe(kind).attributes
    assert attributes
    for each in attributes:
        assert f"{each.name}: {each.type} {each.description}" in told
    for rule in map(rule_of, dataclasses.fields(kind)):
        for word in rule.allowed if isinstance(rule, Choice) else ():
            assert repr(word) in told


Floats = float | Sequence[float]
Ints = int | Sequence[int]
TENTH = float(np.float32(0.1))


@operator_class
class Every(Operator):
    """An operator of no framework, with an attribute of each kind."""

    name = "every"

    flag: bool = attribute("A flag.", default=False)
    maybe: bool | None = attribute("A flag.", default=None, default_text="no")
    single: float = attribute("One.", default=0.0)
    double: float | None = attribute("A.", default=None, bits=64, positive=True, default_text="no")
    singles: Sequence[float] = attribute("Some.", default=(), most=8, default_text="none")
    sizes: Sequence[int] = attribute("Some.", default=(), most=3, least=1, default_text="none")
    doubles: Floats = attribute("Some.", default=(), most=3, bits=64, default_text="none")
    pads: Ints = attribute("Some.", default=(), most=3, bits=64, least=-2, default_text="none")


def of(kind, **attributes):
    return kind.name, partial(kind, **attributes)


def command(assignment):
    return "every", partial(operator_from, Every, [assignment])


def message(**member):
    return next(iter(member), ""), lambda: ops.from_message(v1.Operator(**member))


def resample(**attributes):
    return message(dml_resample={"interpolation_mode": LINEAR, **attributes})


dml = partial(of, ops.DmlResampleGrad, interpolation_mode="linear")
interpolate = partial(of, ops.Interpolate, mode="linear")
every = partial(of, Every)
TRANSFORMATION, MODE = "coordinate_transformation_mode", "interpolation_mode"
# A call that makes an operator, the refused attribute, and words of the error.
REFUSALS = [
    (of(ops.DmlResampleGrad), MODE, "is missing"),
    (dml(scale=[1]), "scale", "did you mean 'scales'?"),
    (dml(interpolation_mode="cubic"), MODE, "'nearest_neighbor' (also 'nearest') or 'linear'"),
    (
        *(interpolate(coordinate_transformation_mode="align-corner"), TRANSFORMATION),
        "is 'align-corner' ... 'half_pixel' or 'align_corners' ... did you mean 'align_corners'?",
    ),
    (interpolate(data_format="ncx"), "data_format", "did you mean 'NCX'?"),
    (interpolate(mode=2), "mode", "is 2 (int) ... 'bilinear'"),
    (interpolate(mode=None), "mode", "is None ... 'bilinear'"),
    (dml(scales=[1, 0]), "scales[1]", "is 0 (int) ... above 0"),
    (dml(output_pixel_offsets=[0, 0, -np.inf]), "output_pixel_offsets[2]", "is -inf ... finite"),
    (dml(scales=[FLOAT32_MAX * 2]), "scales[0]", "float32"),
    (dml(scales=[10**400]), "scales[0]", "(int) ... float32"),
    (dml(scales=[10**5000]), "scales[0]", "too long to show"),
    (dml(scales=[1e-60]), "scales[0]", "is 1e-60 ... above 0"),
    (dml(scales=[True]), "scales[0]", "is True (bool) ... numbers"),
    (dml(scales=np.array([True])), "scales[0]", "bool"),
    (dml(scales=[1j]), "scales[0]", "is 1j (complex) ... numbers"),
    (dml(scales="2"), "scales", "is '2' (str) ... in a sequence"),
    (dml(scales=2.0), "scales", "is 2.0 ... in a sequence"),
    (dml(scales=np.array(2.0)), "scales", "in a sequence"),
    (dml(scales={2.0, 3.0}), "scales", "(set) ... in a sequence"),
    (dml(scales=None), "scales", "is None ... in a sequence"),
    (dml(scales=np.ones((2, 2))), "scales[0]", "(ndarray)"),
    (dml(scales=[1] * 9), "scales", "more than 8 values"),
    (dml(scales=iter(int, 1)), "scales", "more than 8 values"),
    (interpolate(sizes=[5, 0]), "sizes[1]", "is 0 (int) ... from 1"),
    (interpolate(sizes=[2**63]), "sizes[0]", "2**63 - 1"),
    (interpolate(sizes_tensor=[2**31]), "sizes_tensor[0]", "2**31 - 1"),
    (interpolate(sizes=[2.0]), "sizes[0]", "is 2.0 (float) ... integers"),
    (
        interpolate(sizes=[4], sizes_tensor=[6]),
        "sizes_tensor",
        "is (6,) ... sizes is (4,)",
    ),
    (of(ops.DmlResample2, interpolation_mode="nearest"), "rounding_direction", "'increasing' or"),
    (message(), "", "is not set ... dml_resample_grad ... interpolate"),
    (message(interpolate={}), "mode", "is missing ... 'bilinear'"),
    (resample(interpolation_mode=7), MODE, "is 7 ... _MODE_LINEAR = 2"),
    (resample(nearest_rounding=-1), "nearest_rounding", "is -1 ... _ROUNDING_HALF_UP = 2"),
    (resample(offset_convention=SWAPPED), "offset_convention", "is 'swapped' ... 'forward' only"),
    (message(dml_resample2={MODE: LINEAR, "offset_convention": 3}), "offset_convention", "is 3"),
    (message(dml_resample_grad1={MODE: NEAREST}), "rounding_direction", "is missing"),
    (resample(scales=[1, float("nan")]), "scales[1]", "is nan"),
    (message(interpolate={"mode": 1, "sizes": [-(2**63)]}), "sizes[0]", f"is {-(2**63)}"),
    (every(flag=None), "flag", "is None; give True or False"),
    (every(flag=1), "flag", "is 1 (int); give True or False"),
    (every(maybe="true"), "maybe", "is 'true' (str); give True or False"),
    (every(single=None), "single", "is None; give a number, finite in float32"),
    (every(single=1e39), "single", "is 1e+39 (float); give a number, finite in float32"),
    (every(single=True), "single", "is True (bool); give a number"),
    (every(single="1"), "single", "is '1' (str); give a number"),
    (every(single=(1.0,)), "single", "is (1.0,) (tuple); give a number"),
    (every(double=0), "double", "is 0 (int); give a number, finite and above 0 in float64"),
    (every(double=np.nan), "double", "is nan"),
    (every(doubles=True), "doubles", "is True (bool); give numbers"),
    (every(pads=-3), "pads", "is -3 (int); give integers, each from -2 to 2**63 - 1"),
    (every(pads=(0, True)), "pads[1]", "is True (bool); give integers"),
    (every(pads=1.0), "pads", "is 1.0 (float); give integers"),
    (command("flag=yes"), "flag", "is 'yes' (str); give True or False"),
    (command("single=x"), "single", "is 'x' (str); give a number, finite in float32"),
    (command("pads=1,x"), "pads", "is '1,x' (str); give integers, each from -2 to 2**63 - 1"),
    (message(torch_interpolate={"size": [2], "follow": 1}), "follow", "'forward_adjoint' only"),
]


@pytest.mark.parametrize(("made", "attribute", "words"), REFUSALS)
def test_a_refusal_names_the_attribute_what_came_and_what_would_do(made, attribute, words):
    name, make = made
    with pytest.raises(InvalidRequestError) as caught:
        make()
    error = caught.value
    assert error.field == ".".join(filter(None, ("operator", name, attribute)))
    assert str(error) == f"{attribute or 'operator'}: {error.description}"
    assert all(each in error.description for each in words.split(" ... "))
    assert len(str(error)) < 400


NUMBERS = [
    *([2, 3], (2.0, 3.0), np.array([2, 3]), np.array([2, 3], np.float16)),
    *([np.float64(2), np.array(3)], range(2, 4), (each for each in (2, 3))),
]
KEPT = [
    *(("flag", given, True) for given in (True, np.array([True])[0])),
    *(("maybe", given, given) for given in (None, False)),
    *(("single", *each) for each in ((0.1, TENTH), (np.float16(2), 2.0), (3, 3.0))),
    *(("double", given, given) for given in (0.1, None)),
    *(("doubles", given, (0.1, 2.0)) for given in ((0.1, 2), np.array([0.1, 2]))),
    *(("doubles", given, (5.0,)) for given in (5, np.float64(5))),
    *(("singles", given, (2.0, 3.0)) for given in NUMBERS),
    *(("sizes", given, (4,)) for given in ([4], (4,), np.array([4]), np.array([4], np.int8))),
    *(("pads", given, (-2,)) for given in (-2, np.int8(-2), (-2,), np.array([-2]))),
]


@pytest.mark.parametrize(
    # Without addresses, which differ between processes that share the tests.
    ("name", "given", "kept"),
    KEPT,
    ids=lambda value: repr(value).partition(" at 0x")[0],
)
def test_a_value_is_kept_as_the_wire_carries_it(name, given, kept):
    value = getattr(Every(**{name: given}), name)
    assert repr(value) == repr(kept)


def test_minus_zero_is_told_from_a_default_of_zero():
    (single,) = (each for each in dataclasses.fields(Every) if each.name == "single")
    assert is_default(single, 0.0)
    assert not is_default(single, -0.0)
    assert repr(Every(single=-0.0)) == "Every(single=-0.0)"


WORDS = [
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
def test_the_command_line_reads_every_kind(assignment, value):
    assert getattr(operator_from(Every, [assignment]), assignment.partition("=")[0]) == value


def test_a_forward_message_takes_one_value_of_what_only_a_gradient_reads():
    message = v1.TorchInterpolate(size=(2,), follow=v1.TorchInterpolate.FOLLOW_FORWARD_ADJOINT)
    forward = ops.from_message(v1.Operator(torch_interpolate=message))
    assert forward == ops.TorchInterpolate(size=2)
    dml = v1.DmlResample(interpolation_mode=LINEAR, offset_convention=FORWARD)
    expected = ops.DmlResample(interpolation_mode="linear")
    assert ops.from_message(v1.Operator(dml_resample=dml)) == expected
