"""Histograms: HdrHistogram's bins, percentiles, correction and encoding."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.bench.histogram import HIGHEST_US, Histogram

TIMES = st.lists(st.integers(1, HIGHEST_US), min_size=1, max_size=60)

# What hdrhistogram 0.10.8 for Python encodes, of bins from 1 to 3.6e9 with 3 digits, once n counts
# of the value 37 n**3 were recorded for each n below 200.
PUBLISHED = (
    "HISTFAAAAlR4nC2IfSzUAQCGve/vJNbX1FprpLVKl3Tp0nVd13VJl6SSSqhUWiWp9K1aE4bM+Q6ZZCZkSBJmMgyTSWZIQjJD"
    "ZpIkyaim94/n2fMa+UfN19Ghs870hP/GPzRHpeiohqYPG/qJRL8NZnw1nFk51yBi9qxK/Tkf9Of16hl+1FvwS3fhQ71Fb0WL"
    "f4iM3usumRKWNgnLwkTL34lWPhBWfeFqrbDmlbC2XVj3kutjuSGLGyu5qZ2bf3JLGrc2YdtnbP+GHVPYqeWuJ9ydxT2fsDcN"
    "+5/jQAEOluHwGxxpgnM7jvbi+HecyMIpP5wOxBktzkXg/CNceIyLT3H5Ga68wLUC3HiNW2W47Xb37D0PH3j6wssf1wPgHYQ7"
    "wbiPEPghFIEIhxaRCEM0ohCDWMT97XjsS4B9IhyScCgZjilwSoVLOo5l4GQm3LLhlgP3XLjnwSMflwrhVYSrxbhZAu9SeJZD"
    "WQFVFdTVUNfAqhZWddDUQ9MATSNsm2HbArtW2LXBvgP2nXDogkM3HHvg2AenfrgMwGUQrkNwHYbrCCSjsBiDxTikE5BOwtKH"
    "Ul/K/CkLoCyI8mDKQ6gIpSKcikgqo6mKoSqOqniqE6hOpFUSrZNpnULrVGrSqcmgTSZtsmmbQ7tcKvNoms8VhTQtomkxTUso"
    "LqW4nOIKiqtoVk2zGprV0qyO5vU0b6B5IyXNlLRQ0kqLNko6aNFJaRel3ZT2UNpHaT8tB2g5SNkQZcOUjVA2SvkY5eNUTFA+"
    "SaWPoPAVJP6CcYBgHCSYBAvGIYJJqPAHj0LOWA=="
)


def test_what_another_implementation_has_written_is_read() -> None:
    expected = Histogram()
    for number in range(1, 200):
        expected.record([37 * number**3] * number)
    np.testing.assert_array_equal(Histogram.decode(PUBLISHED).counts, expected.counts)


@given(TIMES)
def test_what_is_encoded_is_decoded(times: list[int]) -> None:
    made = Histogram.of(times)
    np.testing.assert_array_equal(Histogram.decode(made.encode()).counts, made.counts)
    assert made.total == len(times)


@pytest.mark.parametrize("text", ["", "no base64!", base64.b64encode(b"\x1c\x84").decode()])
def test_what_is_no_histogram_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HdrHistogram"):
        Histogram.decode(text)


@given(TIMES, st.sampled_from([1, 50, 90, 99, 99.9, 100]))
def test_a_percentile_has_three_digits(times: list[int], percent: float) -> None:
    exact = float(np.percentile(times, percent, method="inverted_cdf"))
    assert exact <= Histogram.of(times).percentile(percent) <= exact * 1.001


def test_the_correction_adds_what_stalled_callers_did_not_see() -> None:
    # The example of HdrHistogram's own tests: calls of 1 ms every 10 ms, then one of 100 s.
    raw = Histogram.of([1000] * 10_000 + [100_000_000])
    corrected = raw.corrected(10_000)
    assert (raw.total, corrected.total) == (10_001, 20_000)
    assert raw.percentile(99) == 1000
    for percent, expected in ((30, 1e3), (50, 1e3), (75, 5e7), (90, 8e7), (99, 9.8e7)):
        assert corrected.percentile(percent) == pytest.approx(expected, rel=1e-3)
    assert corrected.percentile(100) == pytest.approx(1e8, rel=1e-3)


@given(TIMES)
def test_an_interval_as_long_as_every_time_corrects_nothing(times: list[int]) -> None:
    made = Histogram.of(times)
    np.testing.assert_array_equal(made.corrected(HIGHEST_US).counts, made.counts)
    np.testing.assert_array_equal(made.corrected(0).counts, made.counts)


def test_nothing_recorded_is_nothing() -> None:
    empty = Histogram()
    assert (empty.total, empty.percentile(99), empty.mean_us) == (0, 0.0, 0.0)
    assert Histogram.decode(empty.encode()).total == 0
