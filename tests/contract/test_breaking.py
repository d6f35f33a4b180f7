"""`make breaking` compares the schema with the newest release's; tests, with every release's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

ROOT = Path(__file__).parents[2]
IMAGES = sorted(
    (ROOT / "proto/released").glob("*.binpb"),
    key=lambda image: [int(number) for number in image.stem[1:].split(".")],
)


def breaking(buf: str, proto: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the comparison of `make schema` on another schema."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not on PATH")
    target = (make, "--no-print-directory", "breaking")
    words = [*target, f"BIN={Path(buf).parent}", f"PROTO={proto}", *more]
    return subprocess.run(  # noqa: S603 - our own Makefile
        words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tensor.proto", ("repeated int64 sizes = 2;", "repeated int64 sizes = 9;"), '"2"'),
        ("tensor.proto", ("repeated int64 strides = 3;", ""), '"3" with name "strides"'),
        ("tensor.proto", ("int64 sizes", "int32 sizes"), "changed type"),
        ("gradient_service.proto", ("rpc ListOperators", "rpc Operators"), "ListOperators"),
    ],
    ids=["renumbered", "removed", "type", "method"],
)
def test_a_change_that_breaks_released_clients_fails(
    buf: str, tmp_path: Path, file: str, change: tuple[str, str], message: str
) -> None:
    proto = tmp_path / "proto"
    shutil.copytree(ROOT / "proto", proto)
    path = proto / "gradwire/v1" / file
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    done = breaking(buf, proto)
    assert done.returncode != 0
    assert message in done.stdout


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_the_schema_of_today_breaks_no_release(buf: str, image: Path) -> None:
    done = breaking(buf, ROOT / "proto", f"RELEASED={image}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_release_without_later_changes_has_the_image_of_its_schema(
    buf: str, tmp_path: Path
) -> None:
    built = tmp_path / "today.binpb"
    words = [buf, "build", "proto", "--exclude-source-info", "--output", str(built)]
    subprocess.run(words, cwd=ROOT, check=True, timeout=60)  # noqa: S603 - our own schema
    today, released = (
        {file.name: file for file in FileDescriptorSet.FromString(path.read_bytes()).file}
        for path in (built, IMAGES[-1])
    )
    assert released.keys() <= today.keys()
    if "## [Unreleased]" not in (ROOT / "CHANGELOG.md").read_text():
        assert released == today


def test_the_schema_is_compared_with_the_newest_release() -> None:
    newest = re.search(
        r"^## \[(\d+\.\d+)\.\d+\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    compared = re.search(r"^RELEASED := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert newest is not None
    assert compared is not None
    assert compared[1] == f"proto/released/v{newest[1]}.binpb"
    assert (ROOT / compared[1]).is_file()
