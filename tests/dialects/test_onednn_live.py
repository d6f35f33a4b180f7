"""interpolate and interpolate_backward against the installed oneDNN, bit by bit."""

from __future__ import annotations

import pytest

from conformance import onednn_library
from conformance.rows import Tally, version
from support.oracles import live_onednn

if version("onednn") is None:
    pytest.skip("compares with oneDNN where it is installed", allow_module_level=True)


def test_weights_have_the_library_s_bits() -> None:
    tally = Tally()
    for case in live_onednn.cases(1000):
        onednn_library.add(tally, case)
    tally.check()
