"""Lets a real Prometheus scrape a loaded server; every query there is must have data.

    PYTHONPATH=tests python -m monitoring.check

The queries are those of the dashboard and of the alert rules in deploy/monitoring, and those that
prometheus-adapter makes of deploy/kubernetes for the autoscaler. Needs `prometheus` on the PATH.
The server has two workers, one of which is killed on the way; what callers counted must be what
Prometheus has at the end.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import yaml

from gradwire import v1
from support.certificates import Papers
from support.load import Callers
from support.processes import Command, running_command
from support.raw_calls import RawClient, as_stream, opening, published_request, wrong_request

FILES = Path(__file__).parents[2] / "deploy/monitoring"
ADAPTER = FILES.parent / "kubernetes/adapter-rules.yaml"
WINDOW = "8s"
FLAGS = ("--workers", "2", "--max-streams", "8", "--http-port", "127.0.0.1:0")
PATIENCE_S = 40.0
LOAD_S = 6.0


class Prometheus:
    """A Prometheus that runs at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            told = json.load(answer)
        if told["status"] != "success":
            raise RuntimeError(f"{path}: {told}")
        return told["data"]

    def query(self, query: str) -> list[float]:
        """Return the values of a query now, those that are numbers."""
        values = [float(each["value"][1]) for each in self.ask("query", query=query)["result"]]
        return [value for value in values if not np.isnan(value)]

    def check_data(self, asked: Mapping[str, str]) -> None:
        """Wait until every query has data."""
        for query, where in asked.items():
            _until(partial(self.query, query), f"no data for {where}: {query}")


@contextmanager
def prometheus(target: str, folder: Path, *, more: str = "") -> Generator[Prometheus]:
    """Run one on the configuration of deploy/monitoring, sooner and elsewhere.

    more  settings of the job that scrapes the target
    """
    config = (FILES / "prometheus.yml").read_text()
    job = "  - job_name: gradwire\n"
    rules = {"- alerts.yml": f"- {FILES}/alerts.yml"}
    ours = {"127.0.0.1:9464": target, "15s": "1s", **rules, job: job + more}
    if lacking := [each for each in ours if each not in config]:
        raise RuntimeError(f"prometheus.yml lacks {lacking}")
    (folder / "prometheus.yml").write_text(_replaced(config, ours))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "prometheus.log").open("wb") as log:
        files = f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"
        command = ["prometheus", *files, f"--web.listen-address={address}"]
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603
    server = Prometheus(address)

    def scraped() -> bool:
        with suppress(OSError, RuntimeError):
            return server.query("up") == [1.0]
        return False

    try:
        _until(scraped, "Prometheus has not scraped the server")
        yield server
    finally:
        process.terminate()
        process.wait(timeout=30)


def _replaced(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _until(holds: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > until:
            raise RuntimeError(f"after {PATIENCE_S:g} s: {what}")
        time.sleep(0.2)


class Load(Callers):
    """Calls of every kind, and refused ones, until the block ends."""

    def __init__(self, address: str) -> None:
        super().__init__(address, "unary", "async unary", "many", "stream")
        self._threads.append(threading.Thread(target=self._spoil, args=(address,), daemon=True))

    @property
    def succeeded(self) -> int:
        """Calls of Evaluate that brought a result."""
        return sum(tally.calls - len(tally.lost) for tally in self.tallies[:2])

    def _spoil(self, address: str) -> None:
        """Be refused for what is wrong, and for want of room."""
        while not self._over.is_set():
            with RawClient(address) as client:
                client.evaluate(wrong_request())
                held = [client.start(self._wait()) for _ in range(4)]
                for stream in held:
                    try:
                        next(stream)
                    except grpc.RpcError:
                        break
                client.stream(as_stream(published_request()))
                self._over.wait(0.2)
                for stream in held:
                    stream.cancel()

    def _wait(self) -> Iterator[v1.EvaluateStreamRequest]:
        yield opening(published_request())
        self._over.wait(1.0)


def queries() -> Iterator[tuple[str, str]]:
    """Yield every query of the dashboard, and those of the adapter for a pod; with their places."""
    variables = {"$__rate_interval": WINDOW, "$__range": WINDOW}
    variables |= {"$job": "gradwire", "$instance": ".+"}
    for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield _replaced(target["expr"], variables), panel["title"]
    # A server stands for a pod.
    pod = {"<<.LabelMatchers>>": 'job="gradwire"', "<<.GroupBy>>": "instance"}
    for rule in yaml.safe_load(ADAPTER.read_text())["rules"]:
        series = {"<<.Series>>": rule["name"]["matches"]}
        yield _replaced(rule["metricsQuery"], {**series, **pod}), rule["name"]["as"]


def alerts(server: Prometheus, *, of_certificates: bool) -> Iterator[tuple[str, str]]:
    """Yield what each alert compares with its threshold; refuse rules that cannot be evaluated."""
    for group in server.ask("rules")["groups"]:
        for rule in group["rules"]:
            if rule["health"] == "err":
                raise RuntimeError(f"{rule['name']}: {rule['lastError']}")
            compared, threshold = re.split(r" (?:>|<|==) (?=[\d.]+$)", rule["query"])
            float(threshold)
            if ("gradwire_certificate_" in compared) is of_certificates:
                yield compared.replace("[5m]", f"[{WINDOW}]"), rule["name"]


def check(server: Prometheus, command: Command, load: Load) -> None:
    with load:
        time.sleep(LOAD_S / 2)
        command.kill_worker(1)
        command.wait_for_log("worker serves worker=1 ", times=2)
        time.sleep(LOAD_S / 2)
        asked = dict([*queries(), *alerts(server, of_certificates=False)])
        server.check_data(asked)
    restarts = "sum(gradwire_worker_restarts_total)"
    _until(lambda: server.query(restarts) == [1.0], "no restart was told")
    counted = 'sum(gradwire_requests_total{method="Evaluate", status="OK"})'
    # At most one call of each caller was answered whose answer died with its worker.
    _until(
        lambda: 0 <= server.query(counted)[0] - load.succeeded <= 2,
        f"{load.succeeded} calls, of which Prometheus saw {server.query(counted)}",
    )
    (samples,) = server.query("scrape_samples_scraped")
    (scrape_s,) = server.query("max_over_time(scrape_duration_seconds[1m])")
    sys.stdout.write(
        f"{len(asked)} queries have data; {load.succeeded} calls counted; {samples:.0f} samples "
        f"in a scrape, which took at most {scrape_s * 1e3:.0f} ms\n"
    )


def check_certificates(folder: Path) -> None:
    """Have the queries of certificates answered by a server with one that expires in 3 days."""
    papers, soon = Papers(folder), datetime.now(UTC) + timedelta(days=3)
    papers.write(not_after=soon)
    tls = f"    scheme: https\n    tls_config: {{ca_file: {folder}/ca.pem}}\n"
    with (
        running_command(*FLAGS, *papers.flags, log=folder / "server.log") as command,
        prometheus(command.http_address, folder, more=tls) as server,
    ):
        asked = dict(alerts(server, of_certificates=True))
        server.check_data(asked)
        left_s = [server.query(query) for query in asked]
        expected_s = soon.timestamp() - time.time()
        if not asked or any(abs(one - expected_s) > PATIENCE_S for (one,) in left_s):
            raise RuntimeError(f"{expected_s} s are left of 3 days, and {asked} say {left_s}")
    sys.stdout.write(f"{len(asked)} queries of certificates have data\n")


def main() -> None:
    """Check and tell."""
    with (
        tempfile.TemporaryDirectory() as name,
        running_command(*FLAGS, log=Path(name) / "server.log") as command,
        prometheus(command.http_address, Path(name)) as server,
    ):
        check(server, command, Load(command.address))
    with tempfile.TemporaryDirectory() as name:
        check_certificates(Path(name))


if __name__ == "__main__":
    main()
