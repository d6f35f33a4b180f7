"""The CUDA kernels through NVRTC, which needs no device."""

from __future__ import annotations

import re
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradwire_server.backends.cuda import build
from gradwire_server.backends.cuda.programs import every_kernel
from support.kernels import cuda_programs

needs_nvrtc = pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")

# What would change bits or their order: fused products, atomics, denormal numbers set to zero.
FORBIDDEN = re.compile(r"\b(fma|mad\.\S*f(?:16|32|64)|atom|red)\b|\.ftz\b|\.sat\b")

SMALLEST = ("fill_bands.cu", ["fill_bands<unsigned int>"])


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


@needs_nvrtc
@pytest.mark.parametrize("architecture", cuda_programs.ARCHITECTURES)
def test_every_kernel_compiles_without_spills_and_within_its_registers(
    architecture: int, cache: Path
) -> None:
    taken = cuda_programs.registers(architecture, cache)
    budget = cuda_programs.budget()
    assert taken.keys() == budget.keys()
    beyond = {name: count for name, count in taken.items() if count > budget[name]}
    assert not beyond, f"tests/support/kernels/cuda_programs.py writes the budget anew: {beyond}"


@needs_nvrtc
@pytest.mark.parametrize("architecture", [90, 120])
def test_compiled_kernels_fuse_nothing_add_in_order_and_keep_denormals(architecture: int) -> None:
    for text, lowered in cuda_programs.texts(architecture):
        assert all(name in text for name in lowered.values())
        found = FORBIDDEN.search(text)
        assert found is None, f"{min(lowered)}: {found and found.group()}"


def test_what_must_not_be_in_a_kernel_would_be_found() -> None:
    for line in (
        "fma.rn.f32 %f1, %f2, %f3, %f4;",
        "mad.rn.f64 %fd1, %fd2, %fd3, %fd4;",
        "atom.global.add.f32 %f1, [%rd1], %f2;",
        "red.global.add.f32 [%rd1], %f1;",
        "add.ftz.f32 %f1, %f2, %f3;",
    ):
        assert FORBIDDEN.search(line)
    assert not FORBIDDEN.search("mad.lo.s32 %r1, %r2, %r3, %r4; add.rn.f32 %f1, %f2, %f3;")


@needs_nvrtc
def test_kernels_stay_within_48_kib_of_shared_memory(cache: Path) -> None:
    for source, expressions in build.by_source(every_kernel()).items():
        log = build.cubin(source, expressions, 90, cache).log
        taken = [int(size) for size in re.findall(r"(\d+) bytes smem", log)]
        assert max(taken, default=0) <= 48 << 10


@needs_nvrtc
def test_what_was_compiled_is_found_again(tmp_path: Path) -> None:
    first = build.cubin(*SMALLEST, 90, tmp_path)
    folder = tmp_path / build.version()
    (kept,) = folder.iterdir()
    written = kept.stat().st_mtime_ns
    assert build.cubin(*SMALLEST, 90, tmp_path) == first
    assert kept.stat().st_mtime_ns == written
    build.cubin(*SMALLEST, 80, tmp_path)
    build.cubin("fill_bands.cu", ["fill_bands<unsigned short>"], 90, tmp_path)
    # Nothing else lies there: files are written aside and moved.
    assert len(list(folder.iterdir())) == 3


@needs_nvrtc
def test_a_cubin_ends_with_its_last_table(tmp_path: Path) -> None:
    """Readers of ELF files, the driver among them, refuse a file that ends before."""
    code = build.cubin(*SMALLEST, 90, tmp_path).code
    assert code.startswith(b"\x7fELF")
    (table,) = struct.unpack_from("<Q", code, 32)
    size, count = struct.unpack_from("<2H", code, 54)
    assert table + size * count <= len(code)


@needs_nvrtc
@pytest.mark.parametrize("damage", ["a bit", "the end", "all"])
def test_a_damaged_file_is_compiled_again(tmp_path: Path, damage: str) -> None:
    made = build.cubin(*SMALLEST, 90, tmp_path)
    (path,) = (tmp_path / build.version()).iterdir()
    whole = bytearray(path.read_bytes())
    if damage == "a bit":
        whole[len(whole) // 2] ^= 1
    path.write_bytes(whole[: {"a bit": len(whole), "the end": -2, "all": 0}[damage]])
    again = build.cubin(*SMALLEST, 90, tmp_path)
    assert (again.code, again.lowered) == (made.code, made.lowered)
    written = path.stat().st_mtime_ns
    assert build.cubin(*SMALLEST, 90, tmp_path) == again
    assert path.stat().st_mtime_ns == written


@needs_nvrtc
def test_a_folder_that_cannot_be_written_to_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert build.cubin(*SMALLEST, 90, tmp_path / "file").code.startswith(b"\x7fELF")


@needs_nvrtc
def test_what_does_not_compile_is_said_with_the_compilers_words(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=r"fill_bands\.cu: .*undefined"):
        build.cubin("fill_bands.cu", ["fill_bands<undefined_type>"], 90, tmp_path)
    assert not list(tmp_path.iterdir())


def test_both_releases_of_cupy_at_once_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cupy-cuda12x", "cupy-cuda13x"):
        folder = tmp_path / f"{name.replace('-', '_')}-14.2.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 14.2.0\n", encoding="utf-8"
        )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ImportError, match="cupy-cuda12x and cupy-cuda13x are both installed"):
        build.check()


def test_every_kernel_has_a_file_that_opens_with_what_it_does() -> None:
    folder = Path(build.__file__).parent
    for kernel in every_kernel():
        text = (folder / kernel.source).read_text(encoding="utf-8")
        assert text.startswith("// ")
        assert f" {kernel.expression.partition('<')[0]}(" in text
