"""Over a network that loses packets, stops or vanishes, no call is lost and every hang ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.link import may_link
from support.processes import environment
from support.raw_calls import PATIENCE_S

pytestmark = pytest.mark.skipif(not may_link(), reason="no networks of one's own may be made here")
TESTS = Path(__file__).parents[1]


def play(scenario: str) -> Any:
    """Play a scenario in networks of its own; return what callers saw."""
    paths = [str(TESTS), *(path for path in sys.path if path)]
    done = subprocess.run(  # noqa: S603 - our own program
        ["/usr/bin/env", "unshare", "-rn", sys.executable, "-m", "chaos.link", scenario],
        env=environment({"PYTHONPATH": ":".join(paths)}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_no_call_is_lost_over_a_line_that_loses_packets_and_stops() -> None:
    seen = play("loss")
    assert seen["calls"]
    assert seen["packets_lost"]
    assert (seen["wrong"], seen["lost"]) == (0, [])


@pytest.mark.slow
def test_calls_to_an_end_that_has_vanished_end_and_later_ones_succeed() -> None:
    seen = play("vanish")
    assert set(seen["first"].values()) == {"a result"}
    assert set(seen["gone"].values()) <= {"DeadlineExceededError", "UnavailableError"}
    assert max(seen["seconds"].values()) < PATIENCE_S
    assert set(seen["again"].values()) == {"a result"}
