"""What the kernel lets a test do that is no administrator: namespaces of its own."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache


@cache
def may_link() -> bool:
    """Whether a process may have networks of its own, joined by devices that it speaks for."""
    words = "ip link set lo up && ip tuntap add dev t0 mode tun && ip addr add 10.0.0.1 dev t0"
    return _works("unshare", "-rn", "sh", "-c", words)


def _works(program: str, *arguments: str) -> bool:
    found = shutil.which(program)
    if found is None:
        return False
    tried = subprocess.run([found, *arguments], capture_output=True, check=False)  # noqa: S603
    return tried.returncode == 0
