"""The unit for systemd in docs/operations.md fits the server that it starts."""

from __future__ import annotations

import json
import re

from support.manifests import ROOT
from support.processes import run_command

PAGE = (ROOT / "docs/operations.md").read_text()
# What a worker and the process that watches take, and what arrives: docs/sizing.md.
WORKER, WATCHER, ARRIVING = 460, 60, 512


def test_the_unit_starts_a_server_and_lets_it_stop() -> None:
    (unit,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    told = run_command("--print-config", env=dict(re.findall(r"(GRADWIRE_\w+)=(\S+)", unit)))
    assert not told.returncode, told.stderr
    assert not told.stderr
    settings = json.loads(told.stdout)
    ((stop_s, most),) = re.findall(r"TimeoutStopSec=(\d+)\n.*MemoryMax=(\d+)M\n", unit, re.DOTALL)
    assert int(stop_s) > settings["drain_delay_s"] + settings["grace_s"] + 15
    assert settings["workers"] > 1, "SIGUSR2 renews several workers"
    own = settings["workers"] * WORKER + WATCHER + ARRIVING
    assert int(most) >= settings["max_memory_bytes"] / 2**20 + own
