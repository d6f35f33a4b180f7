"""One case of `gradwire check`: what the operator gives, what the function gives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire import Client
from gradwire.cli.candidate import Candidate, CandidateError
from gradwire.cli.check_cases import Case, Pair
from gradwire.cli.differences import differing, ulps_off
from gradwire.errors import InvalidRequestError, LimitExceededError
from gradwire.ops import OPERATORS, Operator

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """Where batch, channel and spatial axes are.

    rank           of the tensors; of 2 axes one is the channel, of 1 none
    channels_last  whether the channel is behind the spatial axes
    """

    rank: int
    channels_last: bool

    def shape(self, batch: Pair, spatial: Shape) -> Shape:
        """Return the shape of a tensor."""
        leading = batch[len(batch) - (self.rank - len(spatial)) :]
        if self.channels_last:
            return (*leading[:1], *spatial, *leading[1:])
        return (*leading, *spatial)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a case showed.

    given     what the function was given
    words     what went wrong, where that was not a number
    element   index of the first wrong element; None where there is no result to look into
    expected  its value; came: the function's
    ulps      how far it is off, in ulps of the same sum over magnitudes, which a tolerance is
              compared with; 0 for zeros of two signs, None with NaN and infinities
    off       how far any is off at most, in these ulps; inf with NaN and infinities
    wrong     how many are
    """

    case: Case
    input_shape: Shape
    output_shape: Shape
    given: Array
    words: str = ""
    element: Shape | None = None
    expected: Any = None
    came: Any = None
    ulps: float | None = None
    off: float = math.inf
    wrong: int = 0

    @property
    def kind(self) -> str:
        """Tell failures apart that have different causes."""
        if self.words:
            return " ".join(self.words.split()[:3])
        return "not finite" if self.ulps is None else "value" if self.ulps else "sign of zero"


class Unfit(Exception):  # noqa: N818 (no fault)
    """The operator does not take a case."""


@dataclass(frozen=True, slots=True)
class Trial:
    """All that does not change from case to case.

    tolerance  ulps of the sum of magnitudes that a result may be off
    """

    client: Client
    operator: Operator
    candidate: Candidate
    frame: Frame
    tolerance: int
    seed: int

    def __call__(self, case: Case) -> Failure | None:
        """Run a case; return None where the function does as the operator does.

        Raises Unfit.
        """
        given_shape, output_shape = self.shapes(case)
        memory = case.memory(given_shape, seed=self.seed)
        given = memory.view()
        expected = self._evaluate(given, output_shape)
        about = (case, given_shape, output_shape, given)
        try:
            came = self.candidate(memory, output_shape)
        except CandidateError as error:
            return Failure(*about, words=str(error))
        wrong = differing(expected, came)
        if not wrong.any():
            return None
        off = ulps_off(expected, came, self._evaluate(np.abs(given), output_shape))
        if self.tolerance:
            wrong &= off > self.tolerance
            if not wrong.any():
                return None
        place: list[int] = np.argwhere(wrong)[0].tolist()
        element = tuple(place)
        one, other = expected[element], came[element]
        finite = bool(np.isfinite(one) & np.isfinite(other))
        return Failure(
            *about,
            element=element,
            expected=one,
            came=other,
            ulps=float(off[element]) if finite else None,
            off=float(off[wrong].max()),
            wrong=int(wrong.sum()),
        )

    def shapes(self, case: Case) -> tuple[Shape, Shape]:
        """Return the shapes of what is given and of the result."""
        source = self.frame.shape(case.batch, tuple(pair[0] for pair in case.spatial))
        result = self.frame.shape(case.batch, tuple(pair[1] for pair in case.spatial))
        gradient = OPERATORS[self.operator.name].gradient
        return (result, source) if gradient else (source, result)

    def _evaluate(self, given: Array, output_shape: Shape) -> Array:
        try:
            operator = self.operator.for_output(output_shape)
            return self.client.evaluate(operator, given, output_shape=output_shape)
        except (InvalidRequestError, LimitExceededError) as error:
            raise Unfit(str(error)) from error
