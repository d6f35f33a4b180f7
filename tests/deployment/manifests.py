"""The manifests of deploy/kubernetes as Kustomize renders them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradwire_server.config.settings import Settings

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
# Memory of a server beside max_memory_bytes, in bytes (docs/sizing.md).
WORKER, WATCHER, ARRIVING = 460 << 20, 60 << 20, 512 << 20
_UNITS = {"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

Object = dict[str, Any]


@cache
def _lacking() -> str:
    """Say why there is no Kustomize that knows what the files say; older ones do not tell which."""
    if shutil.which("kubectl") is None:
        return "kubectl is not installed"
    known = "kustomizeVersion" in _kubectl("version", "--client", "--output", "json")
    return "" if known else "kubectl is older than 1.24"


def _kubectl(*words: str) -> str:
    command = ["/usr/bin/env", "kubectl", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@cache
def rendered(folder: Path) -> Manifests:
    """Return what `kubectl kustomize` makes of a folder; skip the test where it cannot be had."""
    if why := _lacking():
        pytest.skip(why)
    return Manifests(list(yaml.safe_load_all(_kubectl("kustomize", str(folder)))))


def quantity(text: str) -> float:
    ((number, unit),) = re.findall(r"^([\d.]+)([a-zA-Z]*)$", text)
    return float(number) * _UNITS[unit]


@dataclass(frozen=True)
class Manifests:
    """All objects of a rendered kustomization."""

    objects: list[Object]

    def one(self, kind: str) -> Object:
        (found,) = [each for each in self.objects if each["kind"] == kind]
        return found

    @property
    def pod(self) -> Any:
        return self.one("Deployment")["spec"]["template"]["spec"]

    @property
    def labels(self) -> Any:
        return self.one("Deployment")["spec"]["template"]["metadata"]["labels"]

    @property
    def container(self) -> Any:
        (found,) = self.pod["containers"]
        return found

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that the server has: the image's, and over them the manifest's."""
        found = dict(re.findall(r"(GRADWIRE_\w+)=(\S+)", (ROOT / "docker/Dockerfile").read_text()))
        for variable in self.container["env"]:
            name = variable["name"]
            if "value" in variable:
                found[name] = variable["value"]
                continue
            kind, _, resource = variable["valueFrom"]["resourceFieldRef"]["resource"].partition(".")
            # Rounded up to whole ones, as the divisor 1 says.
            found[name] = str(-int(-quantity(self.container["resources"][kind][resource]) // 1))
        return found

    @property
    def settings(self) -> Settings:
        given: dict[str, Any] = {}
        for name, text in self.environment.items():
            setting = name.removeprefix("GRADWIRE_").lower()
            default = getattr(Settings(), setting)
            given[setting] = text == "true" if isinstance(default, bool) else type(default)(text)
        return Settings(**given)
