"""PTX on the CPU: what it means, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from cudasim.module import REVERSE, SimError
from cudasim.samples import show
from ptxsim.module import PtxModule, translated
from ptxsim.parser import PtxError, entries
from ptxsim.samples import compiled_samples
from support.kernels.cuda_backends import needs_cuda_packages, needs_simulator
from support.oracles import oracles

pytestmark = needs_simulator

# y[i] = x[i] * x[i] + 1 for i < count, of a block.
_SQUARES = """
.version 8.0
.target sm_90
.address_size 64

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


def _squares(instruction: str) -> PtxModule:
    text = _SQUARES.replace("INSTRUCTION", instruction)
    return translated([(text, {"squares": "squares"})])


def _launched(module: PtxModule, x: oracles.Tensor, *, threads: int = 64) -> oracles.Tensor:
    given, y = module.holding(x, order=REVERSE), module.buffer(x.nbytes, order=REVERSE)
    module.launch("squares", (1,), (threads,), [given, y, np.int32(len(x))])
    return y.view(np.float32, len(x)).copy()


def test_sums_and_products_are_rounded_apart_and_denormals_kept() -> None:
    x = np.array([*np.linspace(-2, 3, 50), 1 + 2**-12, 1e-40, 1e-20], np.float32)
    module = _squares("mul.rn.f32 	%f2, %f1, %f1;")
    oracles.same_bits(_launched(module, x), x * x + np.float32(1))
    tiny = np.array([1e-40, -1e-40], np.float32)
    scaled = _launched(_squares("mul.rn.f32 	%f2, %f1, 0f7E800000;"), tiny)
    oracles.same_bits(scaled, tiny * np.float32(2.0**126) + np.float32(1))
    assert (scaled != 1).all()


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
def test_what_is_not_known_is_an_error(instruction: str, message: str) -> None:
    with pytest.raises(PtxError, match=message):
        _squares(instruction)


def test_functions_that_are_called_are_an_error() -> None:
    with pytest.raises(PtxError, match="functions that are called"):
        entries(".func helper() { ret; }")


def test_launch_bounds_are_kept() -> None:
    with pytest.raises(SimError, match="a block of 65 threads; __launch_bounds__ says 64"):
        _launched(_squares("mul.f32 %f2, %f1, %f1;"), np.ones(65, np.float32), threads=65)


@needs_cuda_packages
@pytest.mark.parametrize("architecture", [75, 90, 120])
@pytest.mark.parametrize("what", ["barrier", "shuffles", "copy"])
def test_what_nvrtc_makes_of_a_source_computes_what_the_source_does(
    what: str, architecture: int
) -> None:
    module = compiled_samples(architecture)
    oracles.same_bits(show(what, module=module), show(what))


@needs_cuda_packages
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("reads beyond", "illegal address: beyond a buffer"),
        ("writes input", "illegal address: a read-only buffer"),
        ("leaves", "barrier divergence: 63 threads wait"),
        ("two barriers", "different __syncthreads"),
        ("mask", "lane 16 is not in mask 0xffff"),
        ("misaligned", "misaligned address"),
    ],
)
def test_mistakes_show_in_what_nvrtc_made_of_them(what: str, message: str) -> None:
    with pytest.raises(SimError, match=message):
        show(what, module=compiled_samples(90))
