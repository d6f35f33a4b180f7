"""What cannot run is refused before anything is placed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from gradwire_ray.deployment import Deployment

CLEAR = ("--insecure",)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "A"}, "name is 'A'"),
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"name": ""}, "name is ''"),
        ({"least": 0}, "min is 0"),
        ({"least": 3, "most": 2}, "max 2"),
        ({"target_queue": 0.0}, "target_queue is 0"),
        ({"target_queue": float("nan")}, "target_queue is nan"),
        ({"down_after_s": 0.5}, "down_after_s is 0.5"),
        ({"num_gpus": -1.0}, "num_gpus -1"),
        ({"num_gpus": 1.5}, "num_gpus is 1.5"),
        ({"port": 65536}, "port is 65536"),
        ({"flags": ()}, "give --tls-certificate and --tls-key, or --insecure"),
        ({"flags": ("--nonsense",)}, "No such option '--nonsense'"),
        ({"flags": ("--insecure", "token")}, "unexpected extra argument"),
        ({"flags": ("--workers=2", *CLEAR)}, "--workers=2 is not for replicas"),
        ({"flags": ("--address", "0.0.0.0:1", *CLEAR)}, "--address is not for replicas"),
        ({"flags": ("--max-rank", "9", *CLEAR)}, "--max-rank is 9"),
    ],
    ids=str,
)
def test_a_deployment_that_cannot_run_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(Deployment(flags=CLEAR), **values)


def test_threads_are_whole_cpus_and_one_at_least() -> None:
    threads = [Deployment(num_cpus=cpus, flags=CLEAR).threads for cpus in (0.0, 0.5, 1.9, 4.0)]
    assert threads == [1, 1, 1, 4]


def test_calls_have_the_servers_drain_delay_and_grace_to_finish() -> None:
    flags = (*CLEAR, "--drain-delay-s", "2", "--grace-s", "7")
    assert Deployment(flags=flags).drain_s == 9


def test_neither_the_client_nor_the_server_imports_ray() -> None:
    words = "import json, sys, gradwire, gradwire_server.processes.serve, gradwire_server.command"
    told = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", f"{words}; print(json.dumps(list(sys.modules)))"],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    assert not {"ray", "gradwire_ray"} & set(json.loads(told))
