"""The manifests fit the server they start: settings, ports, times, memory, metrics, labels."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from deployment import manifests as files
from deployment.manifests import KUBERNETES, ROOT, quantity, rendered
from gradwire_server.command import gradwire_server
from gradwire_server.observability.definitions import METRICS

# What a server takes to stop beyond its drain delay and grace period.
STOP_S = 15
ADAPTER: list[dict[str, Any]]
ADAPTER = yaml.safe_load((KUBERNETES / "adapter-rules.yaml").read_text())["rules"]
JOB: dict[str, Any]
(JOB,) = yaml.safe_load((KUBERNETES / "prometheus.yml").read_text())["scrape_configs"]


@pytest.fixture(scope="module", params=["cpu", "gpu", "cpu in the clear", "gpu in the clear"])
def manifests(request, tmp_path_factory):
    overlay, _, in_clear = request.param.partition(" ")
    if not in_clear:
        return rendered(KUBERNETES / "overlays" / overlay)
    folder = tmp_path_factory.mktemp("clear")
    base = os.path.relpath(KUBERNETES, folder.resolve())
    text = f"resources: [{base}/overlays/{overlay}]\ncomponents: [{base}/components/cleartext]\n"
    (folder / "kustomization.yaml").write_text(text)
    return rendered(folder)


def test_the_server_fits_its_pod(manifests):
    told = CliRunner().invoke(gradwire_server, ["--print-config"], env=manifests.environment)
    assert (told.exit_code, told.stderr) == (0, "")
    settings, container = manifests.settings, manifests.container
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
    # It may start slowly, and drain to its end.
    startup, readiness, _ = (one["periodSeconds"] * one["failureThreshold"] for one in probes)
    assert 300 <= startup < manifests.one("Deployment")["spec"]["progressDeadlineSeconds"]
    assert settings.drain_delay_s >= readiness
    stops_s = settings.drain_delay_s + settings.grace_s + STOP_S
    assert manifests.pod["terminationGracePeriodSeconds"] >= stops_s
    # Memory is enough for what the settings let in.
    watcher = files.WATCHER if settings.workers > 1 else 0
    fixed = max(1, settings.workers) * files.WORKER + watcher + files.ARRIVING
    assert quantity(resources["limits"]["memory"]) >= settings.max_memory_bytes + fixed
    assert resources["limits"]["memory"] == resources["requests"]["memory"]


def test_files_that_settings_name_are_mounted_whole(manifests):
    settings, pod = manifests.settings, manifests.pod
    folders = {each["mountPath"]: each for each in manifests.container["volumeMounts"]}
    secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    named = [
        Path(name) for name in (settings.tls_certificate, settings.tls_key, settings.tokens) if name
    ]
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
    user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
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
    selectors = [
        manifests.one("Deployment")["spec"]["selector"]["matchLabels"],
        manifests.one("Service")["spec"]["selector"],
        manifests.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        manifests.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(
            each["labelSelector"]["matchLabels"]
            for each in manifests.pod["topologySpreadConstraints"]
        ),
    ]
    assert len(selectors) > 4
    for selector in selectors:
        assert set() < selector.items() <= manifests.labels.items()
    scaled = manifests.one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert scaled["name"] == manifests.one("Deployment")["metadata"]["name"]


def test_the_autoscaler_reads_what_the_adapter_tells(manifests):
    metrics = manifests.one("HorizontalPodAutoscaler")["spec"]["metrics"]
    told = {rule["name"]["as"] for rule in ADAPTER}
    asked = [each["pods"]["metric"]["name"] for each in metrics if each["type"] == "Pods"]
    assert {"gradwire_queue_depth"} < {*asked} <= told
    # What uses a processor or a GPU, and not only what waits for it: or pods come and go.
    busy = {"cpu"} | (told - {"gradwire_queue_depth", "gradwire_overloaded_per_second"})
    assert busy & {*asked, *(each["resource"]["name"] for each in metrics if "resource" in each)}


@pytest.mark.parametrize("rule", ADAPTER, ids=lambda rule: rule["name"]["as"])
def test_the_adapter_asks_for_what_servers_tell(rule):
    labels = {metric.name: metric.label_names for metric in METRICS}
    series, asked = re.match(r"(\w+)\{(.*)\}", rule["seriesQuery"]).groups()
    assert rule["name"]["matches"] == series
    for name in {series, *re.findall(r"gradwire_\w+", rule["metricsQuery"])}:
        assert name in labels
    own = {label for known in labels.values() for label in known}
    assert set(re.findall(r'(\w+)=~?"', rule["metricsQuery"])) <= own
    given = {each["target_label"] for each in JOB["relabel_configs"] if "target_label" in each}
    assert set(re.findall(r'(\w+)!=""', asked)) == rule["resources"]["overrides"].keys() <= given


def test_prometheus_finds_the_pods_under_the_name_of_the_alert_rules():
    cpu = rendered(KUBERNETES / "overlays/cpu")
    rules = (ROOT / "deploy/monitoring/alerts.yml").read_text()
    assert set(re.findall(r'job="(\w+)"', rules)) == {JOB["job_name"]}
    (kept,) = [each for each in JOB["relabel_configs"] if each.get("action") == "keep"]
    assert kept["regex"] == f"{cpu.labels['app.kubernetes.io/name']};http"
    assert JOB["kubernetes_sd_configs"][0]["namespaces"]["names"] == [
        cpu.one("Namespace")["metadata"]["name"]
    ]
    service = cpu.one("Service")["metadata"]
    named = f"{service['name']}.{service['namespace']}.svc.cluster.local"
    assert JOB["tls_config"]["server_name"] == named
