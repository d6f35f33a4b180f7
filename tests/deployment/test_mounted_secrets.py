"""A server as a pod starts it: changed Secrets are followed, probes are answered, all else asks.

The kubelet puts the files of a Secret into a folder of their own and has links lead there. A change
is a new folder, to which one link is turned; the old folder is removed.
"""

import json
import shutil
import signal
import ssl
from contextlib import contextmanager
from functools import partial
from itertools import count

import grpc
import trustme

from deployment.manifests import KUBERNETES, rendered
from gradwire import AuthenticationError, Client, UnavailableError
from gradwire_server.config.tokens import Scope, add_token
from support.clients import ONCE, SMALL, copied
from support.processes import running_command
from support.raw_calls import wait_until
from support.scraping import get

NAME = "gradwire.gradwire.svc.cluster.local"


class Volume:
    """A folder in which a Secret is mounted."""

    def __init__(self, folder, files):
        self._folder, self._numbers = folder, count()
        folder.mkdir()
        self.swap(files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")

    def swap(self, files):
        data, link = self._folder / "..data", self._folder / "..data_tmp"
        old, new = data.resolve(), self._folder / f"..2026_{next(self._numbers)}"
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
        link.symlink_to(new.name)
        link.replace(data)
        shutil.rmtree(old, ignore_errors=old == data)


class Pod:
    """A server with a manifest's settings, on free ports, with NumPy; its Secrets are volumes."""

    def __init__(self, folder):
        manifests = rendered(KUBERNETES / "overlays/cpu")
        self._folder, self.container = folder, manifests.container
        self.authority = trustme.CA()
        self._tls = Volume(folder / "tls", self._papers())
        self._tokens = Volume(folder / "tokens", {"tokens": self._line("trainer")})
        self._environment = {
            name: text.replace("/etc/gradwire", str(folder)).replace("numba_cpu", "numpy_cpu")
            for name, text in manifests.environment.items()
            if name not in {"GRADWIRE_ADDRESS", "GRADWIRE_HTTP_PORT"}
        }

    def change(self, name):
        """Give the server a certificate of another authority, and a token of another name."""
        self.authority = trustme.CA()
        self._tls.swap(self._papers())
        self._tokens.swap({"tokens": self._line(name)})

    @contextmanager
    def running(self):
        flags, log = ("--http-port", "127.0.0.1:0"), self._folder / "log"
        with running_command(*flags, log=log, env=self._environment) as command:
            lines = [json.loads(line) for line in command.log.splitlines()]
            (self._http,) = [line["address"] for line in lines if line["event"] == "http"]
            self._address = command.address
            yield command

    def is_served(self, name, authority):
        """Call with a token, on a connection of its own that trusts an authority."""
        trusted = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        options = {"credentials": trusted, "token_file": self._folder / name}
        with Client(self._address, **options, retry=ONCE, timeout_s=20) as client:
            try:
                copied(client, SMALL)
            except (AuthenticationError, UnavailableError):
                return False
        return True

    def _papers(self):
        issued = self.authority.issue_cert(NAME, "127.0.0.1")
        chain, key = issued.cert_chain_pems[0], issued.private_key_pem
        return {"tls.crt": chain.bytes(), "tls.key": key.bytes()}

    def _line(self, name):
        made = self._folder / f"{name}.line"
        (self._folder / name).write_text(add_token(made, name=name, scopes=[*Scope]))
        return made.read_bytes()

    def status(self, path, *, kubelet=False, name=None):
        """Return the status of an HTTP answer; the kubelet takes any certificate."""
        context = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
        if kubelet:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        shown = {}
        if name is not None:
            shown["Authorization"] = f"Bearer {(self._folder / name).read_text()}"
        return get(self._http, path, tls=context, **shown)[0]


def test_a_pod_follows_new_secrets_answers_probes_and_drains(tmp_path):
    pod = Pod(tmp_path)
    with pod.running() as command:
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
        command.signal(signal.SIGTERM)
        wait_until(lambda: pod.status("/readyz", kubelet=True) == 503)
        assert pod.status("/healthz", kubelet=True) == 200
        assert pod.is_served("trainer-3", pod.authority)
