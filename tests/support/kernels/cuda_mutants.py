"""Mistakes in the CUDA kernels, each a change of one place, that simulations must catch.

A change that no longer applies to exactly one place is an error: the list is kept up with the code.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cudasim import module
from cudasim.compiler import Mode
from cudasim.module import Module
from gradwire_server.backends.cuda import programs
from support.kernels import cuda_huge, cuda_table
from support.kernels.cuda_device import SOURCES
from support.kernels.cuda_programs import SimulatedCuda
from support.kernels.cuda_table import Row
from support.oracles import oracles


class Mutant(NamedTuple):
    """A mistake.

    name     what is wrong
    source   file that is changed
    before   text that is there once
    after    what comes in its place
    cases    plans of the table that it is tried on; of `cuda_huge` where there is "huge"
    mode     how the run is watched that must catch it
    finding  what that run must say
    dtype    of the numbers
    """

    name: str
    source: str
    before: str
    after: str
    cases: tuple[str, ...]
    mode: Mode = Mode.PLAIN
    finding: str = "Arrays are not equal"
    dtype: str = "float32"

    def run(self) -> None:
        huge = [one for one in cuda_huge.huge() if one.name in self.cases]
        rows = list(self.rows())
        if {one.name for one in huge} | {row.case.name for row in rows} != set(self.cases):
            raise LookupError(f"{self.cases}: not all of these are in a table")
        kernels = {kernel for row in rows for kernel in row.kernels}
        kernels |= {launch.kernel for one in huge for launch in one.program.launches}
        made = self._compiled(frozenset(kernels))
        for row in rows:
            row.check(SimulatedCuda(made, multiprocessors=0))
        for one in huge:
            one.check(made)

    def rows(self) -> Iterator[Row]:
        dtype = next(one for one in oracles.STORAGE_TYPES if one.name == self.dtype)
        for case in cuda_table.cases():
            if case.name in self.cases:
                for numbers in ("special", "strewn", "ordinary"):
                    yield Row(case, (dtype, dtype), numbers)

    def _compiled(self, kernels: frozenset[programs.Kernel]) -> Module:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "cuda")
            shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
            source = folder / self.source
            source.write_text(self.changed(source.read_text()))
            return module.compiled(folder, kernels, self.mode)

    def changed(self, text: str) -> str:
        """Return a source with the mistake. Raises ValueError where its place is not there once."""
        if text.count(self.before) != 1:
            raise ValueError(
                f'"{self.name}" changes {self.source} where it says {self.before!r}, '
                f"which is there {text.count(self.before)} times"
            )
        return text.replace(self.before, self.after)


_RACE = (Mode.THREAD, "data race")

MUTANTS = [
    Mutant(
        "staged numbers are read without a barrier",
        "contiguous_pass.cu",
        "    __syncthreads();\n    const int reached",
        "    const int reached",
        ("a band wider than 4096",),
        *_RACE,
    ),
    Mutant(
        "staged numbers are overwritten without a barrier",
        "contiguous_pass.cu",
        "    __syncthreads();\n  }\n",
        "  }\n",
        ("a band wider than 4096",),
        *_RACE,
    ),
    Mutant(
        "threads without a result leave before a barrier",
        "contiguous_pass.cu",
        "  C sum = mine &&",
        "  if (!mine) return;\n  C sum = mine &&",
        ("a band wider than 4096",),
        finding="barrier divergence",
    ),
    Mutant(
        "shared memory is too short",
        "contiguous_pass.cu",
        "[STAGED + STAGED / WARP]",
        "[STAGED]",
        ("a band wider than 4096",),
        Mode.ADDRESS,
        "out of bounds",
    ),
    Mutant(
        "lanes read each other's sums without a barrier",
        "march_rows.cu",
        "    __syncwarp();\n#pragma unroll",
        "#pragma unroll",
        ("two axes, narrowed",),
        *_RACE,
    ),
    Mutant(
        "sums are overwritten without a barrier",
        "march_rows.cu",
        "    __syncwarp();\n  }\n}",
        "  }\n}",
        ("two axes, narrowed",),
        *_RACE,
    ),
    Mutant(
        "vectors begin where tiles do",
        "march_rows.cu",
        "wide ? (int)(edge % EACH) : 0",
        "0",
        ("rows of vectors, several tiles",),
        Mode.ADDRESS,
        "misaligned address",
    ),
    Mutant(
        "tiles begin where vectors do",
        "march_rows.cu",
        "channels + skew + slot",
        "channels + slot",
        ("rows of vectors, several tiles",),
    ),
    Mutant(
        "where there is no input, a weight is +0",
        "march_rows.cu",
        ": C(-0.0);",
        ": C(0);",
        ("awkward weights, gaps, last",),
    ),
    Mutant(
        "a band is read one tap too far",
        "axis_pass.cu",
        "t < end;",
        "t <= end;",
        ("columns of an image",),
        Mode.ADDRESS,
        "heap-buffer-overflow",
    ),
    Mutant(
        "a strip goes on past the last output",
        "axis_pass.cu",
        "stop = min(first + strip, outputs);",
        "stop = first + strip;",
        ("columns of an image",),
        Mode.ADDRESS,
        "heap-buffer-overflow",
    ),
    Mutant(
        "threads without a job go on",
        "select_inputs.cu",
        "  if (job >= jobs) return;\n",
        "",
        ("three axes copied",),
        Mode.ADDRESS,
        "heap-buffer-overflow",
    ),
    Mutant(
        "columns are as far apart as vectors",
        "march_channels.cu",
        "from += channels",
        "from += V",
        ("linear, 8 channels last",),
    ),
    Mutant(
        "an index has 32 bits",
        "axis_pass.cu",
        "x + (int64)a * inputs * inner + b",
        "x + (int)a * inputs * (int)inner + b",
        ("one axis, little inside",),
        Mode.ADDRESS,
        "signed integer overflow",
    ),
    Mutant(
        "products and sums are fused",
        "numbers.cuh",
        "__fadd_rn(sum, __fmul_rn(weight, number))",
        "__fmaf_rn(weight, number, sum)",
        ("columns of an image",),
    ),
    Mutant(
        "sums begin at +0",
        "numbers.cuh",
        "C(-0.0)",
        "C(0.0)",
        ("awkward weights, one tap, inside",),
    ),
    Mutant(
        "taps are added from the last to the first",
        "axis_pass.cu",
        "weight[t], loaded<V>(tap)",
        "weight[end - 1 - (t - begin)], loaded<V>(tap + (end - 1 - t - (t - begin)) * inner)",
        ("columns of images",),
    ),
    Mutant(
        "taps of weight 0 are skipped",
        "numbers.cuh",
        "  return __fadd_rn(",
        "  if (weight == 0) return sum;\n  return __fadd_rn(",
        ("awkward weights, several taps, inside",),
    ),
    Mutant(
        "outputs without taps are not filled",
        "axis_pass.cu",
        "if (o < carried || begin < end)",
        "if (o < carried || begin <= end)",
        ("pixels of rows with gaps, fill -1.5",),
    ),
    Mutant(
        "results are cut off instead of rounded",
        "numbers.cuh",
        "__float2bfloat16_rn(number)",
        "__ushort_as_bfloat16(__float_as_uint(number) >> 16)",
        ("columns of an image",),
        dtype="bfloat16",
    ),
    Mutant(
        "sums between passes are rounded to 16 bits",
        "march_rows.cu",
        "mine[spread(lane + e * WARP)] = sum[e];",
        "mine[spread(lane + e * WARP)] = widened(rounded<In>(sum[e]));",
        ("two axes, narrowed",),
        dtype="float16",
    ),
    Mutant(
        "lanes take from the wrong neighbor",
        "march_steps.cu",
        "__shfl_up_sync(ALL_LANES, sum",
        "__shfl_down_sync(ALL_LANES, sum",
        ("linear steps of 2, a part of a warp",),
    ),
    Mutant(
        "a missing tap is not zero",
        "gather_taps.cu",
        "k == 0 || k < taps[v] ? sum[v][k] : C(0)",
        "sum[v][k]",
        ("two taps of columns with gaps",),
    ),
    Mutant(
        "outputs without a column are not filled",
        "gather_taps.cu",
        "if (taps[v]) all",
        "all",
        ("one tap of columns with gaps",),
    ),
    Mutant(
        "rows without taps read",
        "gather_taps.cu",
        "if (begin < end) {",
        "{",
        ("one tap of rows with gaps, 3 channels",),
        Mode.ADDRESS,
        "heap-buffer-overflow",
    ),
    Mutant(
        "lanes in the margin of a tile write",
        "march_steps.cu",
        "lane >= margin && ",
        "",
        ("linear steps of 2, several tiles",),
    ),
    Mutant(
        "a row that is not there is not zero",
        "march_steps.cu",
        "make_uint4(0, 0, 0, 0)",
        "make_uint4(0x7fc00000u, 0, 0, 0)",
        ("linear steps of 2, a part of a warp",),
    ),
    Mutant(
        "the input is written to",
        "select_inputs.cu",
        "      store(to, loaded<V>",
        "      const_cast<T*>(x)[0] = fill;\n      store(to, loaded<V>",
        ("three axes copied",),
        finding="illegal address: a read-only buffer",
    ),
    Mutant(
        "threads loop by less than there are",
        "fill_bands.cu",
        "job += (int64)gridDim.x * THREADS",
        "job += THREADS",
        ("many slices of vectors",),
        *_RACE,
    ),
]


def run(name: str) -> None:
    next(mutant for mutant in MUTANTS if mutant.name == name).run()
