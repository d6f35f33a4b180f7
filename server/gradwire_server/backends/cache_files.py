"""Cache files of compiled code: location, integrity and expiry.

A flipped bit in machine code crashes the process or changes results, so each file ends with a
digest. Each version of the code has its own folder, named by 16 hexadecimal digits.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

_DIGEST_BYTES = 16

_OF_A_VERSION = re.compile(r"[0-9a-f]{16}")
_KEPT_S = 30 * 24 * 3600.0

_log = logging.getLogger(__name__)


def user_folder(part: str) -> Path:
    """Return a subfolder of the user's cache folder.

    A user without a home gets a path that nobody can read or write.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        whole = Path(root) if root else Path.home() / ".cache"
    except RuntimeError:
        whole = Path(os.devnull)
    return whole / "gradwire" / part


def digest(content: bytes) -> bytes:
    """Return the digest that detects damaged content."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def read(path: Path) -> bytes | None:
    """Return a file's content without its digest.

    None if the file is missing or damaged.
    """
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    content = kept[:-_DIGEST_BYTES]
    if kept[-_DIGEST_BYTES:] == digest(content):
        return content
    _log.warning("damaged: it is compiled anew", extra={"facts": {"file": str(path)}})
    return None


def write(path: Path, content: bytes) -> None:
    """Write content and its digest.

    Other processes see the whole file or none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        made.write_bytes(content + digest(content))
        made.replace(path)


def forget_others(part: Path) -> None:
    """Mark this version's folder as used; remove other versions' unused folders.

    A folder is unused after a long time without use. A process that is about to read a removed
    folder finds nothing, and compiles.
    """
    with contextlib.suppress(OSError):
        os.utime(part)
        until = time.time() - _KEPT_S
        for other in part.parent.iterdir():
            is_version = _OF_A_VERSION.fullmatch(other.name) and not other.is_symlink()
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                if is_version and other != part and other.stat().st_mtime < until:
                    shutil.rmtree(other, ignore_errors=True)
                    _log.info("removed: long unused", extra={"facts": {"folder": str(other)}})
