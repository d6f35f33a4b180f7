"""Shared memory as a client in another language registers it: memory files, packets, handles."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PAGE = 4096
# linux/fcntl.h
F_ADD_SEALS = 1033
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE = 1, 2, 4, 8
SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW


def memory_file(nbytes: int, *, seals: int = SEALS, flags: int = 0) -> int:
    file = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | flags)
    os.ftruncate(file, nbytes)
    fcntl.fcntl(file, F_ADD_SEALS, seals)
    return file


@dataclass(frozen=True)
class SharedSegment:
    """Registered memory: its handle, and its bytes as the client sees them."""

    handle: str
    memory: NDArray[np.uint8]


class Registrar:
    """A connection to the socket that takes segments."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)
        self.socket.connect(path)

    def send(self, packet: bytes, *files: int) -> bytes:
        socket.send_fds(self.socket, [packet], files)
        return self.socket.recv(1 << 16)

    def register(self, file: int, length: int) -> bytes:
        return self.send(b"R" + struct.pack("<Q", length), file)

    def segment(self, nbytes: int) -> SharedSegment:
        nbytes = max(PAGE, -(-nbytes // PAGE) * PAGE)
        file = memory_file(nbytes)
        memory = np.frombuffer(mmap.mmap(file, nbytes), np.uint8)
        answer = self.register(file, nbytes)
        os.close(file)
        assert answer[:1] == b"H", answer
        return SharedSegment(answer[1:].decode(), memory)

    def forget(self, segment: SharedSegment) -> None:
        self.socket.send(b"F" + segment.handle.encode())

    def close(self) -> None:
        self.socket.close()
