"""Waits until a Prometheus scrapes so many servers, and has our rules.

python -m deployment.watched URL SERVERS
"""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.request import urlopen

from support.raw_calls import wait_until


def asked(url: str, path: str) -> Any:
    with urlopen(f"{url}/api/v1/{path}", timeout=10) as reply:  # noqa: S310 - ours
        return json.load(reply)["data"]


def main() -> None:
    url, servers = sys.argv[1], int(sys.argv[2])
    query = "query?query=sum(gradwire_worker_ready)"

    def ready() -> bool:
        found = asked(url, query)["result"]
        return bool(found) and float(found[0]["value"][1]) == servers

    wait_until(ready)
    groups = asked(url, "rules")["groups"]
    assert any(rule["name"] == "GradwireDown" for group in groups for rule in group["rules"])


if __name__ == "__main__":
    main()
