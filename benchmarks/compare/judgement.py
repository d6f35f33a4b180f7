"""Judgement of paired samples: medians, ratios and the rule for `worse`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher"]

# A loss of at most a tenth is not worse.
TOLERATED = 1.1
# Confidence of the interval of the median.
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Judgement:
    """One figure of both trees, from samples taken in pairs.

    ours, theirs  medians of the samples
    ratio         median of the pairs' ratios; above 1 this tree is worse, for each kind of figure
    low, high     interval of that median
    worse         ratio is above 1.1, and all of the interval is above 1
    """

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    worse: bool


def judge(ours: Sequence[float], theirs: Sequence[float], *, better: Better) -> Judgement:
    """Judge samples; ours[i] and theirs[i] were taken one after the other.

    The interval is that of the sign test: two order statistics of the ratios, which enclose the
    median of any distribution with a probability of at least 95 %. With fewer than six pairs there
    is no such interval, and it is the whole range.
    """
    pairs = list(zip(ours, theirs, strict=True))
    if better == "lower":
        ratios = sorted(_over(mine, other) for mine, other in pairs)
    else:
        ratios = sorted(_over(other, mine) for mine, other in pairs)
    rank = _rank(len(ratios))
    ratio, low, high = statistics.median(ratios), ratios[rank], ratios[-1 - rank]
    worse = ratio > TOLERATED and low > 1
    return Judgement(statistics.median(ours), statistics.median(theirs), ratio, low, high, worse)


def _over(one: float, other: float) -> float:
    if one == other:
        return 1.0
    return one / other if other else math.inf


def _rank(count: int) -> int:
    """Return the number of ratios on each side of the interval."""
    outside, rank = 2 * 0.5**count, 0
    while True:
        outside += 2 * math.comb(count, rank + 1) * 0.5**count
        if outside > 1 - _CONFIDENCE:
            return rank
        rank += 1
