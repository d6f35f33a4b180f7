"""Simulations catch mistakes in the CUDA kernels."""

from __future__ import annotations

import pytest

from cudasim import child
from support.kernels import cuda_mutants
from support.kernels.cuda_backends import needs_cuda_packages, needs_simulator
from support.kernels.cuda_device import SOURCES
from support.kernels.cuda_mutants import MUTANTS, Mutant

pytestmark = needs_simulator


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_changes_one_place(mutant: Mutant) -> None:
    text = (SOURCES / mutant.source).read_text()
    assert mutant.changed(text) != text


@needs_cuda_packages
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant: Mutant) -> None:
    program = f"from support.kernels import cuda_mutants; cuda_mutants.run({mutant.name!r})"
    outcome = child.run(program, mode=mutant.mode)
    assert outcome.finding == mutant.finding, outcome.text[-3000:]


def test_a_mutant_whose_place_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="which is there 0 times"):
        MUTANTS[0].changed("")
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) == len(cuda_mutants.MUTANTS)
