"""Pages match the code, files of deploy/compose each other, and a bill the packages."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from deployment.manifests import ARRIVING, ROOT, WATCHER, WORKER
from gradwire import ops
from gradwire_server.command import gradwire_server
from gradwire_server.config.settings import Settings
from gradwire_server.engine import EvaluationRequest, Limits, Preparer, TensorSpec
from gradwire_server.observability.definitions import METRICS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SIZING = (ROOT / "docs/sizing.md").read_text()
ROWS = re.findall(r"^\| ([\d.]+) MiB[^|]*\| ([\d.]+) MiB \| (\d+) \|$", SIZING, re.MULTILINE)
COMPOSE = ROOT / "deploy" / "compose"
SHAPES = [(1, 3, 64, 64), (1, 3, 256, 256), (8, 64, 112, 112), (1, 1, 16384, 32768)]


def prepared(shape):
    batch, channels, height, width = shape
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX", sizes=(height, width))
    given = TensorSpec.packed(np.dtype(np.float32), shape)
    result = TensorSpec.packed(np.dtype(np.float32), (batch, channels, height // 2, width // 2))
    preparer = Preparer(Limits(), most_kept=1 << 22)
    return preparer.prepare(EvaluationRequest(operator.name, operator, given, result))


@pytest.mark.parametrize(("row", "shape"), [*zip(ROWS, SHAPES, strict=True)], ids=str)
def test_the_table_tells_what_calls_are_charged(row, shape):
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


def test_pages_name_the_version_license_and_floors_of_the_package():
    project = PROJECT["project"]
    version = project["version"]
    for path, pattern in (
        ("CITATION.cff", r"^version: (.*)$"),
        ("CHANGELOG.md", r"^## \[([\d.]+)\]"),
        ("docs/kubernetes.md", r"newTag: ([\d.]+)-"),
    ):
        named = re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE)
        assert named[:1] == [version], path
    assert f"\nlicense: {project['license']}\n" in (ROOT / "CITATION.cff").read_text()
    page = (ROOT / "docs/stability.md").read_text()
    wanted = [*project["dependencies"], *project["optional-dependencies"]["cpu"]]
    floors = dict(re.findall(r"^(\w+)>=([\d.]+)", "\n".join(wanted), re.MULTILINE))
    assert f"| Python | {project['requires-python'].removeprefix('>=')} |" in page
    assert f"| NumPy | {floors['numpy']} |" in page
    assert f"| grpcio, protobuf | {floors['grpcio']}, {floors['protobuf']} |" in page
    assert f"| numba | {floors['numba']}, below" in page


def test_every_alert_has_its_section_which_speaks_of_metrics_that_there_are():
    page = (ROOT / "docs/alerts.md").read_text()
    headings = re.findall(r"^## (\w+)\n\n(\w+)\. ", page, re.MULTILINE)
    text = (ROOT / "deploy/monitoring/alerts.yml").read_text()
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    assert headings == [(rule["alert"], rule["labels"]["severity"].capitalize()) for rule in rules]
    assert set() < set(re.findall(r"\bgradwire_\w+", page)) <= {metric.name for metric in METRICS}


def test_the_unit_starts_a_server_and_lets_it_stop():
    page = (ROOT / "docs/operations.md").read_text()
    (unit,) = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    variables = dict(re.findall(r"(GRADWIRE_\w+)=(\S+)", unit))
    told = CliRunner().invoke(gradwire_server, ["--print-config"], env=variables)
    assert (told.exit_code, told.stderr) == (0, "")
    settings = json.loads(told.stdout)
    ((stop_s, most),) = re.findall(r"TimeoutStopSec=(\d+)\n.*MemoryMax=(\d+)M\n", unit, re.DOTALL)
    assert int(stop_s) > settings["drain_delay_s"] + settings["grace_s"] + 15
    assert settings["workers"] > 1, "SIGUSR2 renews several workers"
    own = settings["workers"] * WORKER + WATCHER + ARRIVING
    assert int(most) << 20 >= settings["max_memory_bytes"] + own


def test_files_of_compose_fit_each_other():
    compose, nginx, prometheus, alerts, sources, boards = (
        (COMPOSE / path).read_text(encoding="utf-8")
        for path in (
            *("compose.yaml", "nginx.conf", "prometheus.yml", "../monitoring/alerts.yml"),
            *("grafana/datasources.yaml", "grafana/dashboards.yaml"),
        )
    )
    # Files here by their place in a container.
    mounted = {
        there: here
        for here, there in re.findall(r"^ +- (\.[^:]*):([^:]*):ro$", compose, re.MULTILINE)
    }
    assert "/etc/prometheus/alerts.yml" in mounted
    assert [here for here in mounted.values() if not (COMPOSE / here).is_file()] == []
    # Balancer, Prometheus and certificate know the servers by their names.
    servers = set(re.findall(r"^  (server-\d+):$", compose, re.MULTILINE))
    assert set() < servers == set(re.findall(r"server (server-\d+):50051", nginx))
    assert servers == set(re.findall(r"(server-\d+):9464", prometheus))
    assert re.findall(r"GRADWIRE_HTTP_HOSTS: (\S+)", compose) == [",".join(sorted(servers))]
    assert "job_name: gradwire" in prometheus
    assert 'job="gradwire"' in alerts
    # Grafana finds the dashboard and its source.
    (folder,) = re.findall(r"path: ([^}]*)}", boards)
    (board,) = (there for there in mounted if Path(there).parent == Path(folder))
    assert mounted[board] == "../monitoring/dashboard.json"
    assert f"DASHBOARD_PATH: {board}" in compose
    lists = json.loads((COMPOSE / mounted[board]).read_text())["templating"]["list"]
    kinds = {one["query"] for one in lists if one["type"] == "datasource"}
    assert kinds == set(re.findall(r"^ +type: (\S+)$", sources, re.MULTILINE))


DPKG = """\
Package: libc++1
Status: install ok installed
Architecture: amd64
Version: 1:14.0-2
Description: a library
 in several lines

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def test_every_distribution_and_installed_package_of_the_system_is_in_the_bill_of_materials(
    tmp_path,
):
    dpkg = tmp_path / "status"
    dpkg.write_text(DPKG, encoding="utf-8")
    command = [sys.executable, str(ROOT / "docker/sbom.py"), "--dpkg", str(dpkg)]
    told = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    bill = json.loads(told.stdout)
    every = [bill["metadata"]["component"], *bill["components"]]
    versions = {(one["name"], one["version"]) for one in every}
    assert {(one.name, one.version) for one in distributions()} <= versions
    found = {one["name"]: one["purl"] for one in every}
    # https://github.com/package-url/purl-spec: percent-encoded but for colons
    assert found["libc++1"] == "pkg:deb/debian/libc%2B%2B1@1:14.0-2?arch=amd64"
    assert "gone" not in found
    assert len({one["bom-ref"] for one in every}) == len(every)
