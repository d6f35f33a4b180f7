"""The files of deploy/compose name each other as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose"


def text(path: str) -> str:
    return (COMPOSE / path).read_text(encoding="utf-8")


def mounted() -> dict[str, str]:
    """Return what is mounted where: files here by their place in a container."""
    return {
        there: here
        for here, there in re.findall(
            r"^ +- (\.[^:]*):([^:]*):ro$", text("compose.yaml"), re.MULTILINE
        )
    }


def test_every_file_that_is_mounted_is_here() -> None:
    missing = [here for here in mounted().values() if not (COMPOSE / here).is_file()]
    assert mounted()
    assert not missing


def test_balancer_prometheus_and_certificate_know_the_servers_by_their_names() -> None:
    servers = set(re.findall(r"^  (server-\d+):$", text("compose.yaml"), re.MULTILINE))
    assert set(re.findall(r"server (server-\d+):50051", text("nginx.conf"))) == servers
    assert set(re.findall(r"(server-\d+):9464", text("prometheus.yml"))) == servers
    hosts = re.search(r"GRADWIRE_HTTP_HOSTS: (\S+)", text("compose.yaml"))
    assert hosts is not None
    assert set(hosts[1].split(",")) == servers


def test_prometheus_has_the_job_that_alerts_are_about() -> None:
    assert "job_name: gradwire" in text("prometheus.yml")
    assert 'job="gradwire"' in text("../monitoring/alerts.yml")
    assert "/etc/prometheus/alerts.yml" in mounted()


def test_grafana_finds_the_dashboard_and_its_source() -> None:
    folder = re.search(r"path: ([^}]*)}", text("grafana/dashboards.yaml"))
    assert folder is not None
    boards = [Path(there) for there in mounted() if Path(there).parent == Path(folder[1])]
    assert [mounted()[str(board)] for board in boards] == ["../monitoring/dashboard.json"]
    assert f"DASHBOARD_PATH: {boards[0]}" in text("compose.yaml")
    board = json.loads(text("../monitoring/dashboard.json"))
    kinds = {one["query"] for one in board["templating"]["list"] if one["type"] == "datasource"}
    assert kinds == set(
        re.findall(r"^ +type: (\S+)$", text("grafana/datasources.yaml"), re.MULTILINE)
    )
