"""A real Prometheus on the configuration of deploy/monitoring."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

FILES = Path(__file__).parents[2] / "deploy/monitoring"
EVERY = "1s"
WINDOW = "8s"


class Prometheus:
    """A Prometheus that runs."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v1"

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        url = f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - http, loopback
            told = json.load(answer)
        if told["status"] != "success":
            raise RuntimeError(f"{path}: {told}")
        return told["data"]

    def query(self, query: str) -> list[float]:
        """Return the values of a query now, those that are numbers."""
        values = [float(each["value"][1]) for each in self.ask("query", query=query)["result"]]
        return [value for value in values if not np.isnan(value)]


@contextmanager
def prometheus(
    target: str, folder: Path, *, authorities: Path | None = None
) -> Generator[Prometheus]:
    """Run one on the configuration of deploy/monitoring, sooner and elsewhere.

    authorities  whose certificates it trusts; None for a target that speaks plain text
    """
    config = (FILES / "prometheus.yml").read_text()
    for wanted, given in (
        ("127.0.0.1:9464", target),
        ("15s", EVERY),
        ("- alerts.yml", f"- {FILES}/alerts.yml"),
    ):
        if wanted not in config:
            raise RuntimeError(f"prometheus.yml lacks {wanted}")
        config = config.replace(wanted, given)
    if authorities is not None:
        job = "  - job_name: gradwire\n"
        tls = f"    scheme: https\n    tls_config: {{ca_file: {authorities}}}\n"
        config = config.replace(job, job + tls)
    (folder / "prometheus.yml").write_text(config)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - in a folder of our own
            [  # noqa: S607 - whichever is installed
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(timeout=30)


def filled(query: str, *, whole: str = WINDOW) -> str:
    """Return a query with the variables of the dashboard filled in.

    whole  the range that is looked at
    """
    for name, value in (
        ("$__rate_interval", WINDOW),
        ("$__range", whole),
        ("$job", "gradwire"),
        ("$instance", ".+"),
    ):
        query = query.replace(name, value)
    return query
