"""Mistakes in the CUDA kernels, each a change of one place, that simulations must catch."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from cudasim.module import Mode
from support.kernels import cuda_table
from support.kernels.cuda_device import SOURCES, compiled, simulated_cuda
from support.kernels.cuda_table import Row
from support.oracles import oracles

# Each names the file, the plan of the table that it is tried on, what must be said of it unless
# that is "Arrays are not equal", and the type of the numbers unless that is float32.
_LISTED = """
staged numbers are read without a barrier | contiguous_pass.cu | a band wider than 4096 | data race
-    __syncthreads();
-    const int reached
+    const int reached
staged numbers are overwritten without a barrier | contiguous_pass.cu | a band wider than 4096
| data race
-    __syncthreads();
-  }
-
+  }
+
threads without a result leave before a barrier | contiguous_pass.cu | a band wider than 4096
| barrier divergence
-  C sum = nothing<C>();
+  if (!mine) return;
+  C sum = nothing<C>();
shared memory is too short | contiguous_pass.cu | a band wider than 4096 | out of bounds
-[STAGED + STAGED / WARP]
+[STAGED]
lanes read each other's sums without a barrier | march_rows.cu | two axes, narrowed | data race
-    __syncwarp();
-#pragma unroll
+#pragma unroll
sums are overwritten without a barrier | march_rows.cu | two axes, narrowed | data race
-    __syncwarp();
-  }
-}
+  }
+}
vectors begin where tiles do | march_rows.cu | rows of vectors, several tiles | misaligned address
-wide ? (int)(edge % EACH) : 0
+0
tiles begin where vectors do | march_rows.cu | rows of vectors, several tiles
-channels + skew + slot
+channels + slot
where there is no input, a weight is +0 | march_rows.cu | awkward weights, gaps, last
-: C(-0.0);
+: C(0);
a band is read one tap too far | axis_pass.cu | columns of an image | heap-buffer-overflow
-t < end;
+t <= end;
a strip goes on past the last output | axis_pass.cu | columns of an image | heap-buffer-overflow
-stop = min(first + strip, outputs);
+stop = first + strip;
threads without a job go on | select_inputs.cu | three axes copied | heap-buffer-overflow
-  if (job >= jobs) return;
-
+
columns are as far apart as vectors | march_channels.cu | linear, 8 channels last
-from += channels
+from += V
an index has 32 bits | axis_pass.cu | one axis, little inside | signed integer overflow
-x + (int64)a * inputs * inner + b
+x + (int)a * inputs * (int)inner + b
products and sums are fused | numbers.cuh | columns of an image
-__fadd_rn(sum, __fmul_rn(weight, number))
+__fmaf_rn(weight, number, sum)
sums begin at +0 | numbers.cuh | awkward weights, one tap, inside
-C(-0.0)
+C(0.0)
taps are added from the last to the first | axis_pass.cu | columns of images
-weight[t], loaded<V>(tap)
+weight[end - 1 - (t - begin)], loaded<V>(tap + (end - 1 - t - (t - begin)) * inner)
taps of weight 0 are skipped | numbers.cuh | awkward weights, several taps, inside
-  return __fadd_rn(
+  if (weight == 0) return sum;
+  return __fadd_rn(
outputs without taps are not filled | axis_pass.cu | pixels of rows with gaps, fill -1.5
-if (begin < end)
+if (begin <= end)
results are cut off instead of rounded | numbers.cuh | columns of an image | bfloat16
-__float2bfloat16_rn(number)
+__ushort_as_bfloat16(__float_as_uint(number) >> 16)
sums between passes are rounded to 16 bits | march_rows.cu | two axes, narrowed | float16
-mine[spread(lane + e * WARP)] = sum[e];
+mine[spread(lane + e * WARP)] = widened(rounded<In>(sum[e]));
lanes take from the wrong neighbor | march_steps.cu | linear steps of 2, a part of a warp
-__shfl_up_sync(ALL_LANES, sum
+__shfl_down_sync(ALL_LANES, sum
a missing tap is not zero | gather_taps.cu | two taps of columns with gaps
-k == 0 || k < taps[v] ? sum[v][k] : C(0)
+sum[v][k]
outputs without a column are not filled | gather_taps.cu | one tap of columns with gaps
-if (taps[v]) all
+all
rows without taps read | gather_taps.cu | one tap of rows with gaps, 3 channels
| heap-buffer-overflow
-if (begin < end) {
+{
lanes in the margin of a tile write | march_steps.cu | linear steps of 2, several tiles
-reads && lane >= margin
+reads
a row that is not there is not zero | march_steps.cu | linear steps of 2, a part of a warp
-make_uint4(0, 0, 0, 0)
+make_uint4(0x7fc00000u, 0, 0, 0)
the input is written to | select_inputs.cu | three axes copied | illegal address: a read-only buffer
-      store(to, loaded<V>
+      const_cast<T*>(x)[0] = fill;
+      store(to, loaded<V>
threads loop by less than there are | fill_bands.cu | many slices of vectors | data race
-job += (int64)gridDim.x * THREADS
+job += THREADS
"""

_EQUAL = "Arrays are not equal"
_BY_SIMULATION = {_EQUAL, "barrier divergence", "illegal address: a read-only buffer"}
_TYPES = {one.name: one for one in oracles.STORAGE_TYPES}


class Mutant(NamedTuple):
    """A mistake: in place of `before`, which the source has once, comes `after`.

    case     plan of the table that it is tried on, or of `cuda_table`
    finding  what the run must say that catches it
    """

    name: str
    source: str
    case: str
    finding: str
    dtype: str
    before: str
    after: str

    @classmethod
    def of(cls, text: str) -> Mutant:
        lines = text.split("\n")
        head = " ".join(one for one in lines if one[0] not in "-+")
        name, source, case, *more = head.split(" | ")
        finding = next((one for one in more if one not in _TYPES), _EQUAL)
        dtype = next((one for one in more if one in _TYPES), "float32")
        before, after = ("\n".join(one[1:] for one in lines if one[0] == sign) for sign in "-+")
        return cls(name, source, case, finding, dtype, before, after)

    @property
    def mode(self) -> Mode:
        """How closely the run is watched."""
        if self.finding in _BY_SIMULATION:
            return Mode.PLAIN
        return Mode.THREAD if self.finding == "data race" else Mode.ADDRESS

    def run(self) -> None:
        """Raise what the mistake leads to, or let a sanitizer end the process."""
        formats = _TYPES[self.dtype], _TYPES[self.dtype]
        cases = [one for one in cuda_table.cases() if one.name == self.case]
        rows = [Row(one, formats, how) for one in cases for how in cuda_table.NUMBERS]
        huge = [one for one in cuda_table.huge() if not rows and one.name == self.case]
        programs = [*(row.program for row in rows), *(one.program for one in huge)]
        assert programs, f"{self.case} is in no table"
        kernels = frozenset(launch.kernel for one in programs for launch in one.launches)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "cuda")
            shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
            source = folder / self.source
            source.write_text(self.changed(source.read_text()))
            made = compiled(self.mode, kernels, folder)
        for row in rows:
            row.check(simulated_cuda(made, multiprocessors=0))
        for one in huge:
            one.check(made)

    def changed(self, text: str) -> str:
        """Return a source with the mistake. Raises ValueError where its place is not there once."""
        if text.count(self.before) != 1:
            raise ValueError(
                f'"{self.name}" changes {self.source} where it says {self.before!r}, '
                f"which is there {text.count(self.before)} times"
            )
        return text.replace(self.before, self.after)


MUTANTS = [Mutant.of(text) for text in re.split(r"\n(?=[a-z])", _LISTED.strip("\n"))]
