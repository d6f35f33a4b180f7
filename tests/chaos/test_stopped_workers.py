"""A worker that is stopped, and so neither ends nor answers, is replaced and costs no call."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gradwire import RetryPolicy
from support.load import Callers
from support.processes import running_command

PATIENCE_S = 2.0
FLAGS = (
    *("--workers", "2"),
    *("--backend", "numpy_cpu"),
    *("--compute-threads", "1"),
    *("--stall-timeout-s", str(PATIENCE_S)),
)


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_replaced_and_no_call_is_lost(tmp_path: Path) -> None:
    patient = RetryPolicy(max_attempts=40, max_backoff_s=0.5)
    with (
        running_command(*FLAGS, log=tmp_path / "log") as command,
        Callers(command.address, "unary", "async unary", "stream", retry=patient) as callers,
    ):
        callers.wait_for_more()
        stopped = command.workers[0]
        os.kill(stopped, signal.SIGSTOP)
        command.wait_for_log(f"worker hangs pid={stopped} ")
        command.wait_for_log("worker serves worker=0 ", times=2)
        callers.wait_for_more()
        assert command.workers[0] != stopped
    callers.check()


@pytest.mark.slow
def test_a_parent_that_was_stopped_takes_nobody_for_dead(tmp_path: Path) -> None:
    with running_command(*FLAGS, log=tmp_path / "log") as command:
        before = command.workers
        command.signal(signal.SIGSTOP)
        time.sleep(3 * PATIENCE_S)
        command.signal(signal.SIGCONT)
        time.sleep(2 * PATIENCE_S)
        assert command.workers == before
        assert "hangs" not in command.log
