"""The simulated device catches a CUDA backend that releases memory or buffers too early.

Each mutant changes one place in the source of the backend.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from gradwire_server.backends.cuda import backend, staging
from gradwire_server.backends.cuda.device import DeviceError
from support.kernels.cuda_backends import check, needs_simulator, simulated, sliced_plan

pytestmark = needs_simulator


class Mutant(NamedTuple):
    """A mistake: text that a module has once, and the text in its place."""

    name: str
    module: ModuleType
    before: str
    after: str


MUTANTS = [
    Mutant(
        "memory is released before the last event",
        backend,
        "        staged.drain()\n",
        "        held.release()\n        staged.drain()\n",
    ),
    Mutant("pending work is left after an error", backend, "staged.abandon()", "pass"),
    Mutant(
        "an abandoned stream is not waited for",
        staging,
        "self.stream.mark(blocking=True)()",
        "pass",
    ),
    Mutant("a result is read before its event", staging, "self.wait()", "pass"),
    Mutant(
        "a buffer is filled before its last copy has completed",
        staging,
        "        pinned.complete()\n",
        "        if pinned.target is not None:\n            pinned.complete()\n",
    ),
]


def _loaded(monkeypatch: pytest.MonkeyPatch, module: ModuleType, text: str) -> ModuleType:
    made = ModuleType(module.__name__)
    made.__file__ = module.__file__
    monkeypatch.setitem(sys.modules, module.__name__, made)
    exec(compile(text, str(module.__file__), "exec"), made.__dict__)  # noqa: S102 - our own
    return made


def _source(module: ModuleType) -> str:
    return Path(str(module.__file__)).read_text(encoding="utf-8")


def _exercise(cuda: type[backend.Cuda], *, eager: bool) -> None:
    """Compute on one backend: parts, pieces, a refused task, and the next call."""
    device = simulated(eager=eager)
    made = cuda(device, memory_bytes=1 << 20, streams=1, buffer_bytes=1 << 12)
    plans = [sliced_plan(5, 16), sliced_plan(1, 40), sliced_plan(9, 7)]
    for number, plan in enumerate([*plans, *plans]):
        device.refused, device.accepted = "invalid argument", 4
        with pytest.raises(DeviceError):
            check(made, plan, number)
        check(made, plan, number)


@pytest.mark.parametrize("eager", [False, True])
def test_the_backend_as_it_is_passes(eager: bool) -> None:  # noqa: FBT001
    _exercise(backend.Cuda, eager=eager)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_an_early_release_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    text = _source(mutant.module)
    assert text.count(mutant.before) == 1
    changed = _loaded(monkeypatch, mutant.module, text.replace(mutant.before, mutant.after))
    if mutant.module is not backend:
        changed = _loaded(monkeypatch, backend, _source(backend))
    with pytest.raises(AssertionError):
        _exercise(changed.Cuda, eager=False)
