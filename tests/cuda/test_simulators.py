"""The simulators do what a device does, from sources and PTX, and see what it would let pass."""

from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cudasim.module import REVERSE, SimError, compiled
from gradwire_server.backends.cuda import build
from ptxsim.module import PtxError, translated
from support.kernels.cuda_table import needs_cuda_packages, needs_simulator
from support.kernels.kernel_table import to_be_rounded
from support.oracles import oracles

pytestmark = needs_simulator

_RAMP = np.arange(64, dtype=np.float32)
_FOLDER = Path(__file__).parents[1] / "cudasim"

# For each finding the kernel that shows it, its threads, and its arguments after x and y.
_SHOWN = {
    "barrier": ("reverse<true>", 64, [64]),
    "missing barrier": ("reverse<false>", 64, [64]),
    "shuffles": ("neighbors", 64, []),
    "copy": ("copy", 64, [0]),
    "reads beyond": ("copy", 64, [1]),
    "reads before": ("copy", 64, [-1]),
    "misaligned": ("copy_vectors", 15, [2]),
    "writes input": ("writes_input", 64, []),
    "leaves": ("leaves_before_barrier", 64, [63]),
    "two barriers": ("two_barriers", 64, []),
    "mask": ("shuffles_outside_mask", 64, []),
    "large block": ("copy", 1025, [0]),
}
_WITHOUT_INPUT = {"leaves", "two barriers", "mask"}

_MAPPED = [f"{way}<{kind}>" for way in ("widen", "narrow") for kind in ("__half", "__nv_bfloat16")]
_NAMES = sorted({name for name, _, _ in _SHOWN.values()} | set(_MAPPED))


@cache
def samples():
    return compiled(_FOLDER, [("samples.cu", name) for name in _NAMES])


def show(what, order=0, *, module=None):
    """Launch a kernel in the way that shows something; return what it wrote."""
    module = module or samples()
    x, y = module.holding(_RAMP, order=order), module.buffer(_RAMP.nbytes, order=order)
    name, threads, numbers = _SHOWN[what]
    given = [y] if what in _WITHOUT_INPUT else [x, y]
    module.launch(name, (1,), (threads,), [*given, *map(np.int32, numbers)], order=order)
    return y.view(np.float32, 64).copy()


def mapped(name, x, result):
    module = samples()
    y = module.buffer(result.nbytes)
    module.launch(name, (result.size // 64,), (64,), [module.holding(x), y])
    return y.view(result.dtype, result.size).copy()


@pytest.mark.parametrize("order", [0, REVERSE, 5, 6])
def test_barriers_and_shuffles_do_not_depend_on_the_order_of_threads(order):
    oracles.same_bits(show("barrier", order), _RAMP[::-1])
    lane = np.arange(64) % 32
    before = np.where(lane > 0, _RAMP - 1, _RAMP)
    after = np.where(lane < 31, _RAMP + 1, _RAMP)
    oracles.same_bits(show("shuffles", order), before + 100 * after)


def test_memory_is_nan_until_it_is_written():
    assert np.isnan(samples().buffer(256).view(np.float32, 64)).all()
    assert np.isnan(show("missing barrier")).any()


# The error of each wrong sample.
_WRONG = {
    "reads beyond": "illegal address: beyond a buffer, 256 bytes from its start",
    "reads before": "illegal address: below a buffer, -4 bytes from its start",
    "writes input": r"illegal address: a read-only buffer.*block \(0,0,0\) thread \(0,0,0\)",
    "leaves": "barrier divergence: 63 threads wait at .* 1 have returned",
    "two barriers": "different __syncthreads: .* and ",
    "mask": "lane 16 is not in mask 0xffff",
}


@pytest.mark.parametrize("what", [*_WRONG, "large block"])
def test_guard_pages_and_the_scheduler_see(what):
    with pytest.raises(SimError, match=_WRONG.get(what, r"invalid block \(1025,1,1\)")) as seen:
        show(what, REVERSE if what == "reads before" else 0)
    assert what not in {"leaves", "two barriers"} or "samples.cu:" in str(seen.value)
    oracles.same_bits(show("copy"), _RAMP)  # which did no harm to what comes later


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("__half", np.dtype(np.float16)), ("__nv_bfloat16", np.dtype(ml_dtypes.bfloat16))],
)
def test_sixteen_bit_numbers_are_converted_as_numpy_does(name, dtype):
    words = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    values = to_be_rounded(dtype)
    awkward = values[: len(values) // 64 * 64]
    with np.errstate(all="ignore"):
        wide, narrowed = words.astype(np.float32), awkward.astype(dtype)
        oracles.same_bits(mapped(f"widen<{name}>", words, wide), wide)
        oracles.same_bits(mapped(f"narrow<{name}>", wide, words), words)
        oracles.same_bits(mapped(f"narrow<{name}>", awkward, narrowed), narrowed)


# y[i] = x[i] * x[i] + 1 for i < count, of a block.
_SQUARES = """
.visible .entry squares(
	.param .u64 .ptr .align 1 squares_param_0,
	.param .u64 .ptr .align 1 squares_param_1,
	.param .u32 squares_param_2
)
.maxntid 64, 1, 1
{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<4>;
	.reg .f32 	%f<4>;
	.reg .b64 	%rd<8>;

	ld.param.u64 	%rd1, [squares_param_0];
	ld.param.u64 	%rd2, [squares_param_1];
	ld.param.u32 	%r1, [squares_param_2];
	mov.u32 	%r2, %tid.x;
	setp.ge.s32 	%p1, %r2, %r1;
	@%p1 bra 	$L__BB0_2;
	cvta.to.global.u64 	%rd3, %rd1;
	mul.wide.s32 	%rd4, %r2, 4;
	add.s64 	%rd5, %rd3, %rd4;
	ld.global.f32 	%f1, [%rd5];
	INSTRUCTION
	add.rn.f32 	%f3, %f2, 0f3F800000;
	cvta.to.global.u64 	%rd6, %rd2;
	add.s64 	%rd7, %rd6, %rd4;
	st.global.f32 	[%rd7], %f3;
$L__BB0_2:
	ret;
}
"""


def _squares(instruction):
    return translated([(_SQUARES.replace("INSTRUCTION", instruction), {"squares": "squares"})])


def _launched(module, x):
    given, y = module.holding(x, order=REVERSE), module.buffer(x.nbytes, order=REVERSE)
    module.launch("squares", (1,), (max(64, len(x)),), [given, y, np.int32(len(x))])
    return y.view(np.float32, len(x)).copy()


def test_sums_and_products_of_ptx_are_rounded_apart_and_denormals_kept():
    x = np.array([*np.linspace(-2, 3, 50), 1 + 2**-12, 1e-40, 1e-20], np.float32)
    squares = _squares("mul.rn.f32 	%f2, %f1, %f1;")
    oracles.same_bits(_launched(squares, x), x * x + np.float32(1))
    tiny = np.array([1e-40, -1e-40], np.float32)
    scaled = _launched(_squares("mul.rn.f32 	%f2, %f1, 0f7E800000;"), tiny)
    oracles.same_bits(scaled, tiny * np.float32(2.0**126) + np.float32(1))
    assert (scaled != 1).all()
    with pytest.raises(SimError, match="a block of 65 threads; __launch_bounds__ says 64"):
        _launched(squares, np.ones(65, np.float32))


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ("tex.1d.v4.f32.f32 	%f2, [%rd1];", "unknown instruction tex.1d"),
        ("atom.global.add.f32 	%f2, [%rd5], %f1;", "unknown instruction atom.global"),
        ("fma.rn.f32 	%f2, %f1, %f1, 0fC0000000;", "unknown instruction fma.rn.f32"),
        ("mul.ftz.f32 	%f2, %f1, 0f7E800000;", "unknown instruction mul.ftz.f32"),
        ("mul.rz.f32 	%f2, %f1, %f1;", "unknown instruction mul.rz.f32"),
        ("add.sat.f32 	%f2, %f1, %f1;", "unknown instruction add.sat.f32"),
        ("cvt.rz.f16.f32 	%f2, %f1;", "unknown instruction cvt.rz.f16.f32"),
        ("cvt.f16.f32 	%f2, %f1;", "unknown form of cvt"),
        ("setp.ltu.f32 	%p1, %f1, %f1;", "unknown comparison"),
        ("st.local.f32 	[%rd1], %f1;", "unknown instruction st.local.f32"),
        ("bar.red.popc.u32 	%r3, 0, %p1;", "unknown form of a barrier"),
        ("mov.f32 	%f2, unknown_name;", "operand 'unknown_name'"),
    ],
)
def test_what_is_not_known_of_ptx_is_an_error(instruction, message):
    with pytest.raises(PtxError, match=message):
        _squares(instruction)


@needs_cuda_packages
@pytest.mark.parametrize("architecture", [75, 90, 120])
def test_what_nvrtc_makes_of_a_source_does_what_the_source_does(architecture):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_FOLDER", _FOLDER)
        patch.setattr(build, "source", "samples.cu".format)
        made = build.compiled(_NAMES, f"compute_{architecture}")
    module = translated([(made.code.rstrip(b"\0").decode(), made.lowered)])
    for what in ("barrier", "shuffles", "copy"):
        oracles.same_bits(show(what, module=module), show(what))
    for what, message in {**_WRONG, "misaligned": "misaligned address"}.items():
        with pytest.raises(SimError, match=message):
            show(what, REVERSE if what == "reads before" else 0, module=module)
