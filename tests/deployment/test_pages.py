"""Pages of docs/ match the code, and the files of deploy/compose each other."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from deployment.manifests import ARRIVING, ROOT, WATCHER, WORKER
from gradwire import ops
from gradwire_server.config.settings import Settings
from gradwire_server.engine import (
    EvaluationRequest,
    Limits,
    Prepared,
    Preparer,
    TableCache,
    TensorSpec,
)
from gradwire_server.observability.definitions import METRICS
from support.processes import run_command

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
ALERTS = (ROOT / "docs/alerts.md").read_text()
RULES = yaml.safe_load((ROOT / "deploy/monitoring/alerts.yml").read_text())["groups"][0]["rules"]
SIZING = (ROOT / "docs/sizing.md").read_text()
ROWS = re.findall(r"^\| ([\d.]+) MiB[^|]*\| ([\d.]+) MiB \| (\d+) \|$", SIZING, re.MULTILINE)
COMPOSE = ROOT / "deploy" / "compose"
SHAPES = [(1, 3, 64, 64), (1, 3, 256, 256), (8, 64, 112, 112), (1, 1, 16384, 32768)]


def prepared(shape: tuple[int, int, int, int]) -> Prepared:
    batch, channels, height, width = shape
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX", sizes=(height, width))
    given = TensorSpec.packed(np.dtype(np.float32), shape)
    result = TensorSpec.packed(np.dtype(np.float32), (batch, channels, height // 2, width // 2))
    preparer = Preparer(Limits(), TableCache(max_entries=1 << 22))
    return preparer.prepare(EvaluationRequest(operator.name, operator, given, result))


@pytest.mark.parametrize(("row", "shape"), [*zip(ROWS, SHAPES, strict=True)], ids=str)
def test_the_table_tells_what_calls_are_charged(
    row: tuple[str, str, str], shape: tuple[int, int, int, int]
) -> None:
    settings, evaluation = Settings(), prepared(shape)
    ways = (evaluation.input.wire_bytes, evaluation.output.wire_bytes)
    if max(ways) <= settings.max_unary_bytes:
        held = evaluation.message_bytes
    else:
        # A chunk each way is on its way through gRPC, twice.
        held = evaluation.memory_bytes + sum(2 * min(settings.max_chunk_bytes, one) for one in ways)
    tensors, charged, at_once = (float(number) for number in row)
    assert sum(ways) / 2**20 == pytest.approx(tensors, rel=0.05)
    assert held / 2**20 == pytest.approx(charged, rel=0.05)
    assert settings.max_memory_bytes // held == at_once


def test_the_citation_has_the_package_s_version_and_license() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    fields = dict(re.findall(r"^(\w+): (.*)$", citation, re.MULTILINE))
    assert fields["version"] == PROJECT["project"]["version"]
    assert fields["license"] == PROJECT["project"]["license"]


def test_the_newest_release_of_the_changelog_is_the_package_s_version() -> None:
    headings = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == PROJECT["project"]["version"]


def test_the_manifests_of_the_guide_name_the_image_of_the_package_s_version() -> None:
    tags = re.findall(r"newTag: ([\d.]+)-", (ROOT / "docs/kubernetes.md").read_text())
    assert tags == [PROJECT["project"]["version"]]


def test_the_stability_page_has_the_oldest_supported_versions() -> None:
    page = (ROOT / "docs/stability.md").read_text()
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["cpu"]]
    floors = dict(re.findall(r"^(\w+)>=([\d.]+)", "\n".join(wanted), re.MULTILINE))
    assert f"| Python | {project['requires-python'].removeprefix('>=')} |" in page
    assert f"| NumPy | {floors['numpy']} |" in page
    assert f"| grpcio, protobuf | {floors['grpcio']}, {floors['protobuf']} |" in page
    assert f"| numba | {floors['numba']}, below" in page


def test_every_alert_has_its_section() -> None:
    headings = re.findall(r"^## (\w+)\n\n(\w+)\. ", ALERTS, re.MULTILINE)
    rules = [(rule["alert"], rule["labels"]["severity"].capitalize()) for rule in RULES]
    assert headings == rules


def test_the_page_speaks_of_metrics_that_there_are() -> None:
    known = {metric.name for metric in METRICS}
    assert set() < set(re.findall(r"\bgradwire_\w+", ALERTS)) <= known


def test_the_unit_starts_a_server_and_lets_it_stop() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    (unit,) = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    told = run_command("--print-config", env=dict(re.findall(r"(GRADWIRE_\w+)=(\S+)", unit)))
    assert not told.returncode, told.stderr
    assert not told.stderr
    settings = json.loads(told.stdout)
    ((stop_s, most),) = re.findall(r"TimeoutStopSec=(\d+)\n.*MemoryMax=(\d+)M\n", unit, re.DOTALL)
    assert int(stop_s) > settings["drain_delay_s"] + settings["grace_s"] + 15
    assert settings["workers"] > 1, "SIGUSR2 renews several workers"
    own = settings["workers"] * WORKER + WATCHER + ARRIVING
    assert int(most) << 20 >= settings["max_memory_bytes"] + own


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
