"""The small kernels of the simulator, compiled by NVRTC."""

from __future__ import annotations

from functools import cache

import pytest

from cudasim.samples import FOLDER, NAMES
from ptxsim.module import PtxModule, translated
from support.kernels import cuda_programs


@cache
def compiled_samples(architecture: int) -> PtxModule:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwire_server.backends.cuda.build._FOLDER", FOLDER)
        patch.setattr("gradwire_server.backends.cuda.build._HEADER", "samples.cu")  # has none
        return translated([cuda_programs.ptx_text("samples.cu", NAMES, architecture)])
