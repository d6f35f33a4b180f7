"""Waits until a Prometheus scrapes so many servers, and has our rules.

python -m deployment.watched HOST:PORT SERVERS
"""

from __future__ import annotations

import sys

from monitoring.check import Prometheus
from support.raw_calls import wait_until

if __name__ == "__main__":
    SERVER, SERVERS = Prometheus(sys.argv[1]), float(sys.argv[2])
    wait_until(lambda: SERVER.query("sum(gradwire_worker_ready)") == [SERVERS])
    RULES = [rule["name"] for group in SERVER.ask("rules")["groups"] for rule in group["rules"]]
    assert "GradwireDown" in RULES
