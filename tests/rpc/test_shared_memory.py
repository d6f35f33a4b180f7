"""EvaluateShared: tensors in memory that a client on this machine shares."""

import fcntl
import mmap
import os
import socket
import struct
import tempfile
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from gradwire import v1
from gradwire.ops import DmlResampleGrad, to_message
from gradwire_server import LocalClient
from support.raw_calls import PATIENCE_S, RawClient, float32, refusal_of, refused, wait_until
from support.scraping import scrape
from support.servers import gated, serving, wait_for, wait_idle

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are Linux's")

PAGE = 4096
# linux/fcntl.h
F_ADD_SEALS = 1033
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE = 1, 2, 4, 8
SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW
LINEAR = DmlResampleGrad(interpolation_mode="linear")
SOURCE, RESULT = (2, 3, 40, 60), (2, 3, 20, 30)
GRADIENT = np.random.default_rng(0).normal(size=SOURCE).astype(np.float32)
with LocalClient() as LOCAL:
    EXPECTED = LOCAL.evaluate(LINEAR, GRADIENT, output_shape=RESULT).tobytes()


def memory_file(nbytes, *, seals=SEALS, flags=0):
    file = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | flags)
    os.ftruncate(file, nbytes)
    fcntl.fcntl(file, F_ADD_SEALS, seals)
    return file


class Registrar:
    """A connection to the socket that takes segments."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)
        self.socket.connect(path)
        self.close = self.socket.close

    def send(self, packet, *files):
        socket.send_fds(self.socket, [packet], files)
        return self.socket.recv(1 << 16)

    def register(self, file, length):
        return self.send(b"R" + struct.pack("<Q", length), file)

    def segment(self, nbytes):
        """Register memory; return its handle, and the memory as the client sees it."""
        nbytes = -(-nbytes // PAGE) * PAGE
        file = memory_file(nbytes)
        memory = np.frombuffer(mmap.mmap(file, nbytes), np.uint8)
        answer = self.register(file, nbytes)
        os.close(file)
        assert answer[:1] == b"H", answer
        return SimpleNamespace(handle=answer[1:].decode(), memory=memory)

    def forget(self, segment):
        self.socket.send(b"F" + segment.handle.encode())
        assert self.segment(PAGE).handle  # the server has read what came before


def offers_memory(address):
    with RawClient(address) as client:
        return client.stub.GetServerInfo(v1.GetServerInfoRequest()).shared_memory


class SharingClient(RawClient):
    """A client with one input and one output segment."""

    def __init__(self, address):
        super().__init__(address)
        assert offers_memory(address)
        self.path = f"{address.removeprefix('unix:')}.memory"
        self.registrar = Registrar(self.path)
        self.input = self.registrar.segment(GRADIENT.nbytes)
        self.output = self.registrar.segment(GRADIENT.nbytes)
        self.input.memory[: GRADIENT.nbytes] = GRADIENT.reshape(-1).view(np.uint8)

    def request(self):
        """Ask for the gradient of the input segment in the output segment."""
        return v1.EvaluateSharedRequest(
            evaluation=v1.EvaluateRequest(
                operator=to_message(LINEAR), input=float32(*SOURCE), output=float32(*RESULT)
            ),
            input=v1.SharedRange(handle=self.input.handle, length=GRADIENT.nbytes),
            output=v1.SharedRange(handle=self.output.handle, length=GRADIENT.nbytes // 4),
        )

    def call(self, request=None):
        return self.stub.EvaluateShared(request or self.request(), timeout=PATIENCE_S)

    def refusal(self, reason, request=None, **told):
        """Call, and check that it is refused."""
        with pytest.raises(grpc.RpcError) as caught:
            self.call(request)
        return refused(refusal_of(caught.value), reason, **told)

    @property
    def result(self):
        return self.output.memory[: GRADIENT.nbytes // 4].tobytes()

    def __exit__(self, *_):
        self.registrar.close()
        super().__exit__()


@pytest.fixture
def folder():
    # Paths of unix sockets have at most 107 bytes; pytest's are long.
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="module")
def server():
    with tempfile.TemporaryDirectory() as name:
        address = f"unix:{name}/socket"
        with serving(address=address, max_memory_bytes=64 << 20, http_port="0") as one:
            yield one


@pytest.fixture
def client(server):
    """Connect to the server, which serves as before when a test is done."""
    with SharingClient(server.address) as one:
        yield one
    with SharingClient(server.address) as one:
        one.call()
        assert one.result == EXPECTED
    wait_idle(server)


def test_ranges_lie_anywhere_and_in_one_segment(client):
    both = client.registrar.segment(2 * GRADIENT.nbytes)
    both.memory[PAGE : PAGE + GRADIENT.nbytes] = client.input.memory[: GRADIENT.nbytes]
    request, first = client.request(), PAGE + GRADIENT.nbytes + 64
    request.input.handle = request.output.handle = both.handle
    request.input.offset, request.output.offset = PAGE, first
    client.call(request)
    assert both.memory[first : first + len(EXPECTED)].tobytes() == EXPECTED


def test_callers_of_the_socket_are_offered_it_unless_it_is_off_or_cannot_be(folder):
    with serving(local_socket=f"{folder}/local") as server:
        assert not offers_memory(server.address)
        with SharingClient(f"unix:{folder}/local") as client:
            client.call()
    with serving(address=f"unix:{folder}/socket", shared_memory=False) as server:
        assert not offers_memory(server.address)
        assert [one.name for one in folder.iterdir()] == ["socket"]
    kept = folder / "socket.memory"
    kept.write_text("mine")  # what is no socket is not removed
    with serving(address=f"unix:{folder}/socket") as server:
        assert not offers_memory(server.address)
    assert kept.read_text() == "mine"


def test_a_closed_connection_frees_memory(server, client):
    def shared():
        return scrape(server.http_address).value("gradwire_shared_memory_bytes")

    registered = len(client.input.memory) + len(client.output.memory)
    wait_until(lambda: shared() == registered)
    assert server.server.service.admission.memory_bytes >= 2 * GRADIENT.nbytes
    client.registrar.close()
    wait_idle(server)
    assert "input.handle" in client.refusal("UNKNOWN_SEGMENT").message
    wait_until(lambda: shared() == 0)


def test_a_handle_that_is_forgotten_by_its_connection_is_unknown(client):
    other = Registrar(client.path)
    other.forget(client.output)
    other.close()
    client.call()
    client.registrar.forget(client.output)
    assert "output.handle" in client.refusal("UNKNOWN_SEGMENT").message


FIELD = "INVALID_FIELD"
# Fields of a part of the request, the reason, and the field at fault, or words of the message where
# there is none.
WRONG = {
    "input too short": ("input", {"length": 4}, FIELD, "input.length"),
    "output too long": ("output", {"length": 57600}, FIELD, "output.length"),
    "input not aligned": ("input", {"offset": 32}, FIELD, "input.offset"),
    "output before its segment": ("output", {"offset": -64}, FIELD, "output.offset"),
    "data besides": ("evaluation", {"data": b"1234"}, "INVALID_DATA", "evaluation.data"),
    "unknown handle": ("input", {"handle": "x" * 32}, "UNKNOWN_SEGMENT", "input.handle: "),
    "input beyond": ("input", {"offset": PAGE}, FIELD, "input.offset"),
    "input at the end": ("input", {"offset": 2**63 - 64}, FIELD, "input.offset"),
    "output over the input": ("output", {"handle": "input", "offset": 64}, FIELD, "output.offset"),
    "unknown field": ("input", {}, "UNKNOWN_FIELD", "field 5 of gradwire.v1.SharedRange at input "),
}


def test_a_wrong_range_is_refused_by_name(client):
    for part, fields, reason, words in WRONG.values():
        request = client.request()
        for name, value in fields.items():
            own = client.input.handle if value == "input" else value
            setattr(getattr(request, part), name, own)
        if reason == "UNKNOWN_FIELD":
            request.input.MergeFromString(b"\x28\x01")
        field = words if reason.startswith("INVALID") else None
        assert client.refusal(reason, request, field=field).message.startswith(words)


def _pipe_end():
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def _file():
    with tempfile.TemporaryFile() as file:
        file.write(bytes(PAGE))
        return os.dup(file.fileno())


def _huge_pages():
    try:
        return memory_file(2 << 20, flags=os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"no huge pages here: {error}")


HALF = 32 << 20
# Registered file, its declared length, and words of the answer.
FILES = {
    "unsealed": (lambda: memory_file(PAGE, seals=0), PAGE, "the file"),
    "sealed in part": (lambda: memory_file(PAGE, seals=SEALS & ~2), PAGE, "the file"),
    "read only": (lambda: memory_file(PAGE, seals=SEALS | F_SEAL_WRITE), PAGE, "the file"),
    "a pipe": (_pipe_end, PAGE, "the file"),
    "a file": (_file, PAGE, "the file"),
    "a folder": (lambda: os.open("/", os.O_RDONLY), PAGE, "the file"),
    "huge pages": (_huge_pages, 2 << 20, "ordinary pages"),
    "told as empty": (lambda: memory_file(PAGE), 0, "the file has 4096 bytes"),
    "told as shorter": (lambda: memory_file(PAGE), PAGE - 1, "the file has 4096 bytes"),
    "told as longer": (lambda: memory_file(PAGE), 2 * PAGE, "the file has 4096 bytes"),
    "told as endless": (lambda: memory_file(PAGE), 2**64 - 1, "the file has 4096 bytes"),
    "beyond half of the budget": (lambda: memory_file(HALF), HALF, "max_memory_bytes"),
}


@pytest.mark.parametrize("name", FILES)
def test_other_files_are_refused(client, server, name):
    make, length, words = FILES[name]
    admission = server.server.service.admission
    before = admission.memory_bytes
    assert admission.max_memory_bytes == 2 * HALF
    file = make()
    answer = client.registrar.register(file, length).decode()
    os.close(file)
    assert answer.startswith("Esegment: ")
    assert words in answer
    assert admission.memory_bytes == before


def test_other_packets_are_refused_and_leave_no_descriptor_open(client):
    def open_files():
        return len([*Path("/proc/self/fd").iterdir()])

    for packet in (b"R", b"?", b"R" + bytes(8), b"x" * 64):
        assert client.registrar.send(packet)[:1] == b"E"
    before, file = open_files(), memory_file(PAGE)
    for _ in range(100):
        answer = client.registrar.send(b"R" + struct.pack("<Q", PAGE), *[file] * 50)
        assert answer[:1] in {b"E", b"H"}
    for _ in range(20):
        other = Registrar(client.path)
        assert other.send(b"", file) == b""
        other.close()
    os.close(file)
    assert open_files() <= before + 10  # grpc may open some


def test_a_connection_has_so_many_segments_at_most(client):
    file = memory_file(PAGE)
    answers = [client.registrar.register(file, PAGE) for _ in range(300)]
    os.close(file)
    assert 200 < sum(one[:1] == b"H" for one in answers) < 300
    assert b"at most" in answers[-1]


def test_memory_whose_connection_closes_amid_a_call_stays_until_it_ends(folder):
    with (
        gated(address=f"unix:{folder}/socket") as (server, gate),
        SharingClient(f"unix:{folder}/socket") as client,
    ):
        request = client.request()
        request.evaluation.input.CopyFrom(float32(512, 512))
        request.evaluation.output.CopyFrom(float32(2, 2))
        large = client.registrar.segment(4 * 512 * 512)
        large.memory.view(np.float32)[:] = 1.0
        request.input.handle, request.input.length = large.handle, large.memory.nbytes
        request.output.length = 16
        future = client.stub.EvaluateShared.future(request, timeout=PATIENCE_S)
        wait_for(server, computing=1, waiting=0)
        client.registrar.close()
        client.refusal("UNKNOWN_SEGMENT", request)
        assert server.server.service.admission.memory_bytes >= large.memory.nbytes
        gate.set()
        future.result(timeout=PATIENCE_S)
        assert client.output.memory[:16].view(np.float32).tolist() == [256.0 * 256] * 4
        wait_idle(server)
