"""A server as a pod starts it: changed Secrets are followed, probes are answered, all else asks.

The kubelet puts the files of a Secret into a folder of their own and has links lead there. A change
is a new folder, to which one link is turned; the old folder is removed.
"""

from __future__ import annotations

import json
import signal
import ssl
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import trustme

from deployment.manifests import KUBERNETES, Manifests, rendered
from gradwire import AuthenticationError, Client, RetryPolicy, UnavailableError, ops
from gradwire_server.config.tokens import Scope, add_token
from support.processes import Command, running_command
from support.raw_calls import wait_until
from support.scraping import get

NAME = "gradwire.gradwire.svc.cluster.local"
OPERATOR = ops.DmlResampleGrad(interpolation_mode="nearest", scales=(0.5, 1.5))


class Volume:
    """A folder in which a Secret is mounted."""

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        self.folder = folder
        self._count = 0
        folder.mkdir(parents=True)
        self.swap(files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")

    def swap(self, files: Mapping[str, bytes]) -> None:
        self._count += 1
        data, link = self.folder / "..data", self.folder / "..data_tmp"
        old = data.resolve() if data.is_symlink() else None
        new = self.folder / f"..2026_{self._count}"
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
        link.symlink_to(new.name)
        link.replace(data)
        if old is not None:
            for file in old.iterdir():
                file.unlink()
            old.rmdir()


class Pod:
    """A server with a manifest's settings, on free ports, with NumPy; its Secrets are volumes."""

    def __init__(self, folder: Path) -> None:
        manifests = Manifests(rendered(KUBERNETES / "overlays/cpu"))
        self._folder, self.container = folder, manifests.container
        self.authority = trustme.CA()
        self.command: Command
        self.http = ""
        self._tls = Volume(folder / "tls", self._papers())
        self._tokens = Volume(folder / "tokens", {"tokens": self._line("trainer")})
        self._environment = {
            name: text.replace("/etc/gradwire", str(folder)).replace("numba_cpu", "numpy_cpu")
            for name, text in manifests.environment.items()
            if name not in {"GRADWIRE_ADDRESS", "GRADWIRE_HTTP_PORT"}
        }

    def token(self, name: str) -> Path:
        return self._folder / name

    def change(self, name: str) -> None:
        """Give the server a certificate of another authority, and a token of another name."""
        self.authority = trustme.CA()
        self._tls.swap(self._papers())
        self._tokens.swap({"tokens": self._line(name)})

    @contextmanager
    def running(self) -> Generator[None]:
        flags, log = ("--http-port", "127.0.0.1:0"), self._folder / "log"
        with running_command(*flags, log=log, env=self._environment) as self.command:
            lines = [json.loads(line) for line in self.command.log.splitlines()]
            (self.http,) = [line["address"] for line in lines if line["event"] == "http"]
            yield

    def is_served(self, name: str, authority: trustme.CA) -> bool:
        """Call with a token, on a connection of its own that trusts an authority."""
        trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        gradient, token = np.array([[4, 5, 6]], np.float32), str(self.token(name))
        once = RetryPolicy(max_attempts=1)
        address = self.command.address
        with Client(address, credentials=trusted, token_file=token, retry=once) as client:
            try:
                client.evaluate(OPERATOR, gradient, output_shape=(2, 2), timeout_s=20)
            except (AuthenticationError, UnavailableError):
                return False
        return True

    def _papers(self) -> dict[str, bytes]:
        issued = self.authority.issue_cert(NAME, "127.0.0.1")
        chain, key = issued.cert_chain_pems[0], issued.private_key_pem
        return {"tls.crt": chain.bytes(), "tls.key": key.bytes()}

    def _line(self, name: str) -> bytes:
        made = self._folder / f"{name}.line"
        self.token(name).write_text(add_token(made, name=name, scopes=[*Scope]))
        return made.read_bytes()

    def status(self, path: str, *, kubelet: bool = False, name: str | None = None) -> int:
        """Return the status of an HTTP answer; the kubelet takes any certificate."""
        context = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
        if kubelet:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        shown = {} if name is None else {"Authorization": f"Bearer {self.token(name).read_text()}"}
        return get(self.http, path, tls=context, **shown)[0]


def test_a_pod_follows_new_secrets_answers_probes_and_drains(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    with pod.running():
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = pod.container[probe]["httpGet"]["path"]
            assert pod.status(path, kubelet=True) == 200
        assert pod.status("/metrics") == 401
        assert pod.status("/metrics", name="trainer") == 200
        old = pod.authority
        assert pod.is_served("trainer", old)
        for name in ("trainer-2", "trainer-3"):
            pod.change(name)
            wait_until(partial(pod.is_served, name, pod.authority))
            assert not pod.is_served(name, old)
            wait_until(lambda: not pod.is_served("trainer", pod.authority))
        wait_until(lambda: pod.status("/metrics", name="trainer-3") == 200)
        # Told to stop, it is not ready, but alive, and still serves.
        pod.command.signal(signal.SIGTERM)
        wait_until(lambda: pod.status("/readyz", kubelet=True) == 503)
        assert pod.status("/healthz", kubelet=True) == 200
        assert pod.is_served("trainer-3", pod.authority)
