"""The manifests of deploy/ and pages fit the server, and a pod starts one that serves."""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
import tomllib
from functools import cache, cached_property, partial
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme
import yaml
from click.testing import CliRunner

from gradwire import AuthenticationError, Client, UnavailableError, ops
from gradwire_server.command import gradwire_server
from gradwire_server.config.settings import Settings
from gradwire_server.config.tokens import Scope, add_token
from gradwire_server.engine import EvaluationRequest, Limits, Preparer, TensorSpec
from gradwire_server.observability.definitions import METRICS
from support.clients import ONCE, SMALL, copied
from support.processes import running_command
from support.raw_calls import wait_until
from support.scraping import get

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
ALERTS = (ROOT / "deploy/monitoring/alerts.yml").read_text()
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
ADAPTER = yaml.safe_load((KUBERNETES / "adapter-rules.yaml").read_text())["rules"]
(JOB,) = yaml.safe_load((KUBERNETES / "prometheus.yml").read_text())["scrape_configs"]
# Seconds that a server takes to stop, beyond its drain delay and grace period.
STOP_S = 15
UNITS = {"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def settings_of(environment):
    told = CliRunner().invoke(gradwire_server, ["--print-config"], env=environment)
    assert (told.exit_code, told.stderr) == (0, "")
    return Settings(**json.loads(told.stdout))


def own_memory(settings):
    """Return the bytes of memory that a server has beside max_memory_bytes (docs/sizing.md)."""
    watcher_mib = 60 if settings.workers > 1 else 0
    return (max(1, settings.workers) * 460 + watcher_mib + 512) << 20


def kubectl(*words):
    command = ["/usr/bin/env", "kubectl", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@cache
def rendered(folder, *, in_clear=False):
    """Return what `kubectl kustomize` makes of a folder; skip the test where it cannot be had."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    # Older ones do not tell whether they know what the files say.
    if "kustomizeVersion" not in kubectl("version", "--client", "--output", "json"):
        pytest.skip("kubectl is older than 1.24")
    return Manifests(list(yaml.safe_load_all(kubectl("kustomize", str(folder)))), in_clear)


def quantity(text):
    ((number, unit),) = re.findall(r"^([\d.]+)([a-zA-Z]*)$", text)
    return float(number) * UNITS[unit]


class Manifests:
    """All objects of a rendered kustomization."""

    def __init__(self, objects, in_clear):
        self.objects, self.in_clear = objects, in_clear
        template = self.one("Deployment")["spec"]["template"]
        self.pod, self.labels = template["spec"], template["metadata"]["labels"]
        (self.container,) = self.pod["containers"]

    def one(self, kind):
        (found,) = [each for each in self.objects if each["kind"] == kind]
        return found

    @cached_property
    def environment(self):
        """The variables that the server has: the image's, and over them the manifest's."""
        found = dict(re.findall(r"(GRADWIRE_\w+)=(\S+)", DOCKERFILE))
        for variable in self.container["env"]:
            name = variable["name"]
            if "value" in variable:
                found[name] = variable["value"]
                continue
            kind, _, resource = variable["valueFrom"]["resourceFieldRef"]["resource"].partition(".")
            # Rounded up to whole ones, as the divisor 1 says.
            found[name] = str(-int(-quantity(self.container["resources"][kind][resource]) // 1))
        return found


@pytest.fixture(scope="module", params=["cpu", "gpu", "cpu in the clear", "gpu in the clear"])
def manifests(request, tmp_path_factory):
    overlay, _, in_clear = request.param.partition(" ")
    if not in_clear:
        return rendered(KUBERNETES / "overlays" / overlay)
    folder = tmp_path_factory.mktemp("clear")
    base = os.path.relpath(KUBERNETES, folder.resolve())
    text = f"resources: [{base}/overlays/{overlay}]\ncomponents: [{base}/components/cleartext]\n"
    (folder / "kustomization.yaml").write_text(text)
    return rendered(folder, in_clear=True)


def test_the_server_fits_its_pod(manifests):
    settings, container = settings_of(manifests.environment), manifests.container
    resources = container["resources"]
    assert settings.compute_threads == quantity(resources["requests"]["cpu"]) >= 1
    # It listens where it is called.
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.address == f"0.0.0.0:{ports['grpc']}"
    assert settings.http_address == f"0.0.0.0:{ports['http']}"
    service = manifests.one("Service")["spec"]
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    rules = manifests.one("NetworkPolicy")["spec"]["ingress"]
    assert [port["port"] for rule in rules for port in rule["ports"]] == ["grpc", "http"]
    # Clients find the pods that are ready, and soon those that are new: gRPC looks a name up at
    # most every 30 s.
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", False)
    assert 30 <= settings.max_connection_age_s <= 120
    # Probes speak TLS where the server does; the SDK sends no token in the clear.
    tls = bool(settings.tls_certificate)
    probes = [container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")]
    seen = [(probe["httpGet"]["port"], probe["httpGet"]["scheme"]) for probe in probes]
    assert seen == [("http", "HTTPS" if tls else "HTTP")] * 3
    assert (bool(settings.tokens), settings.insecure, settings.http_open) == (tls, not tls, not tls)
    assert tls != manifests.in_clear
    # It may start slowly, and drain to its end.
    startup, readiness, _ = (one["periodSeconds"] * one["failureThreshold"] for one in probes)
    assert 300 <= startup < manifests.one("Deployment")["spec"]["progressDeadlineSeconds"]
    assert settings.drain_delay_s >= readiness
    stops_s = settings.drain_delay_s + settings.grace_s + STOP_S
    assert manifests.pod["terminationGracePeriodSeconds"] >= stops_s
    # Memory is enough for what the settings let in.
    needed = settings.max_memory_bytes + own_memory(settings)
    assert quantity(resources["limits"]["memory"]) >= needed
    assert resources["limits"]["memory"] == resources["requests"]["memory"]


def test_files_that_settings_name_are_mounted_whole(manifests):
    settings, pod = settings_of(manifests.environment), manifests.pod
    folders = {each["mountPath"]: each for each in manifests.container["volumeMounts"]}
    secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    names = (settings.tls_certificate, settings.tls_key, settings.tokens)
    named = [Path(name) for name in names if name]
    assert {folders[str(path.parent)]["name"] for path in named} == secrets.keys()
    # A file mounted by itself stays as it was when the pod started.
    assert not any("subPath" in each for each in folders.values())
    # Of root; readable for the group that the server belongs to, and nobody else.
    assert {secret["defaultMode"] for secret in secrets.values()} <= {0o440}
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    # Keys of a Secret of type kubernetes.io/tls.
    assert {path.name for path in named} <= {"tls.crt", "tls.key", "tokens"}


def test_a_pod_is_let_in_where_the_standard_restricted_is_enforced(manifests):
    pod, container = manifests.pod, manifests.container["securityContext"]
    labels = manifests.one("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    identity = pod["securityContext"]
    assert identity["runAsNonRoot"] is True
    assert identity["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["readOnlyRootFilesystem"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {key for each in pod["volumes"] for key in each} <= {"name", "emptyDir", "secret"}
    user = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    assert (str(identity["runAsUser"]), str(identity["runAsGroup"])) in user
    # No rights in the cluster.
    account = manifests.one("ServiceAccount")
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    for one in (account, pod):
        assert one["automountServiceAccountToken"] is False


def test_everything_is_in_one_namespace_and_selects_the_pods(manifests):
    namespace = manifests.one("Namespace")["metadata"]["name"]
    others = [each for each in manifests.objects if each["kind"] != "Namespace"]
    assert {each["metadata"]["namespace"] for each in others} == {namespace}
    kinds = ("Deployment", "PodDisruptionBudget")
    selectors = [manifests.one(kind)["spec"]["selector"]["matchLabels"] for kind in kinds]
    selectors.append(manifests.one("Service")["spec"]["selector"])
    selectors.append(manifests.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"])
    spreads = manifests.pod["topologySpreadConstraints"]
    selectors += [each["labelSelector"]["matchLabels"] for each in spreads]
    assert spreads
    for selector in selectors:
        assert set() < selector.items() <= manifests.labels.items()
    scaled = manifests.one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert scaled["name"] == manifests.one("Deployment")["metadata"]["name"]


def test_the_autoscaler_reads_what_the_adapter_tells(manifests):
    metrics = manifests.one("HorizontalPodAutoscaler")["spec"]["metrics"]
    told = {rule["name"]["as"] for rule in ADAPTER}
    asked = [each["pods"]["metric"]["name"] for each in metrics if each["type"] == "Pods"]
    assert {"gradwire_queue_depth"} < {*asked} <= told
    # One metric at least measures use of a processor or a GPU: queues alone make pods come and go.
    busy = {"cpu"} | (told - {"gradwire_queue_depth", "gradwire_overloaded_per_second"})
    assert busy & {*asked, *(each["resource"]["name"] for each in metrics if "resource" in each)}


def test_prometheus_finds_the_pods_under_the_name_of_the_alert_rules():
    cpu = rendered(KUBERNETES / "overlays/cpu")
    assert set(re.findall(r'job="(\w+)"', ALERTS)) == {JOB["job_name"]}
    (kept,) = [each for each in JOB["relabel_configs"] if each.get("action") == "keep"]
    assert kept["regex"] == f"{cpu.labels['app.kubernetes.io/name']};http"
    service = cpu.one("Service")["metadata"]
    namespaces = JOB["kubernetes_sd_configs"][0]["namespaces"]["names"]
    assert namespaces == [service["namespace"]] == [cpu.one("Namespace")["metadata"]["name"]]
    named = f"{service['name']}.{service['namespace']}.svc.cluster.local"
    assert JOB["tls_config"]["server_name"] == named


def mount(folder, files):
    """Mount a Secret, or change it, as the kubelet does.

    The files are in a folder of their own, and links lead there. A change is a new folder, to which
    one link is turned; the old folder is removed.
    """
    data, link = folder / "..data", folder / "..data_tmp"
    old, new = data.resolve(), folder / f"..{time.monotonic_ns()}"
    new.mkdir(parents=True)
    for name, content in files.items():
        (new / name).write_bytes(content)
        if not data.exists():
            (folder / name).symlink_to(f"..data/{name}")
    link.symlink_to(new.name)
    link.replace(data)
    shutil.rmtree(old, ignore_errors=old == data)


def test_a_pod_follows_new_secrets_answers_probes_and_drains(tmp_path):
    manifests = rendered(KUBERNETES / "overlays/cpu")

    def change(name):
        """Mount a token, and a certificate of a new authority, whose own is returned."""
        authority, line = trustme.CA(), tmp_path / f"{name}.line"
        issued = authority.issue_cert("gradwire.gradwire.svc.cluster.local", "127.0.0.1")
        chain, key = issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()
        (tmp_path / name).write_text(add_token(line, name=name, scopes=[*Scope]))
        mount(tmp_path / "tls", {"tls.crt": chain, "tls.key": key})
        mount(tmp_path / "tokens", {"tokens": line.read_bytes()})
        return authority.cert_pem.bytes()

    def is_served(name, roots):
        """Call with a token, on a connection of its own that trusts an authority."""
        trusted, token = grpc.ssl_channel_credentials(roots), tmp_path / name
        options = {"credentials": trusted, "token_file": token, "retry": ONCE, "timeout_s": 20}
        with Client(command.address, **options) as client:
            try:
                copied(client, SMALL)
            except (AuthenticationError, UnavailableError):
                return False
        return True

    def status(path, roots=None, **shown):
        """Return the status of an HTTP answer; the kubelet trusts anyone."""
        context = ssl.create_default_context(cadata=(roots or old).decode())
        if roots is None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return get(command.http, path, tls=context, **shown)[0]

    def metrics(name, roots):
        return status("/metrics", roots, Authorization=f"Bearer {(tmp_path / name).read_text()}")

    old = change("trainer")
    environment = {
        name: text.replace("/etc/gradwire", str(tmp_path)).replace("numba_cpu", "numpy_cpu")
        for name, text in manifests.environment.items()
        if name not in {"GRADWIRE_ADDRESS", "GRADWIRE_HTTP_PORT"}
    }
    flags, log = ("--http-port", "127.0.0.1:0"), tmp_path / "log"
    with running_command(*flags, log=log, env=environment) as command:
        lines = [json.loads(line) for line in command.log.splitlines()]
        (command.http,) = [line["address"] for line in lines if line["event"] == "http"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert status(manifests.container[probe]["httpGet"]["path"]) == 200
        assert status("/metrics", old) == 401
        assert metrics("trainer", old) == 200
        assert is_served("trainer", old)
        for name in ("trainer-2", "trainer-3"):
            roots = change(name)
            wait_until(partial(is_served, name, roots))
            assert not is_served(name, old)
            wait_until(lambda roots=roots: not is_served("trainer", roots))
        wait_until(lambda: metrics("trainer-3", roots) == 200)
        # Told to stop, it is not ready, but alive, and still serves.
        command.signal(signal.SIGTERM)
        wait_until(lambda: status("/readyz") == 503)
        assert status("/healthz") == 200
        assert is_served("trainer-3", roots)


SIZING = (ROOT / "docs/sizing.md").read_text()
ROWS = re.findall(r"^\| ([\d.]+) MiB[^|]*\| ([\d.]+) MiB \| (\d+) \|$", SIZING, re.MULTILINE)
SHAPES = [(1, 3, 64, 64), (1, 3, 256, 256), (8, 64, 112, 112), (1, 1, 16384, 32768)]


@pytest.mark.parametrize(("row", "shape"), [*zip(ROWS, SHAPES, strict=True)], ids=str)
def test_the_table_tells_what_calls_are_charged(row, shape):
    settings, (*images, height, width) = Settings(), shape
    operator = ops.InterpolateBackward(mode="bilinear", data_format="NCX", sizes=(height, width))
    shapes = (shape, (*images, height // 2, width // 2))
    specs = [TensorSpec.packed(np.dtype(np.float32), each) for each in shapes]
    request = EvaluationRequest(operator.name, operator, *specs)
    evaluation = Preparer(Limits(), most_kept=1 << 22).prepare(request)
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


def test_every_alert_has_its_section_which_speaks_of_metrics_that_there_are():
    page = (ROOT / "docs/alerts.md").read_text()
    headings = re.findall(r"^## (\w+)\n\n(\w+)\. ", page, re.MULTILINE)
    rules = yaml.safe_load(ALERTS)["groups"][0]["rules"]
    assert headings == [(rule["alert"], rule["labels"]["severity"].capitalize()) for rule in rules]
    assert set() < set(re.findall(r"\bgradwire_\w+", page)) <= {metric.name for metric in METRICS}


def test_the_unit_starts_a_server_and_lets_it_stop():
    page = (ROOT / "docs/operations.md").read_text()
    (unit,) = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    settings = settings_of(dict(re.findall(r"(GRADWIRE_\w+)=(\S+)", unit)))
    ((stop_s, most),) = re.findall(r"TimeoutStopSec=(\d+)\n.*MemoryMax=(\d+)M\n", unit, re.DOTALL)
    assert int(stop_s) > settings.drain_delay_s + settings.grace_s + STOP_S
    assert settings.workers > 1, "SIGUSR2 renews several workers"
    assert int(most) << 20 >= settings.max_memory_bytes + own_memory(settings)


def test_pages_name_the_version_license_and_floors_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
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
