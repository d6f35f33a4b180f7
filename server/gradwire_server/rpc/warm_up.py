"""Warm-up evaluations and calls before the server serves.

Python, gRPC and a backend do much only once: they import, specialize, start threads and allocate
memory. Before a server serves, it evaluates tiny tensors of every data type and compares the
results with NumPy's, and then answers its own calls through gRPC, on a socket in a folder that is
private to its user.
"""

from __future__ import annotations

import asyncio
import logging
import math
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import grpc
import numpy as np

from gradwire import ops, tensors, v1
from gradwire_server.backends import Backend, LeavesToCpu, NumpyCpu
from gradwire_server.engine import Limits, Preparer, TableCache, at_once
from gradwire_server.rpc import codec

_log = logging.getLogger("gradwire_server")

_FLOAT32 = v1.DataType.DATA_TYPE_FLOAT32
_SMALL = (1, 2, 6, 34)
_LINEAR = ops.InterpolateBackward(mode="linear", data_format="NCX")
_OPERATORS = (
    _LINEAR,
    ops.InterpolateBackward(mode="nearest", data_format="NCX"),
    ops.DmlResampleGrad(interpolation_mode="linear"),
)

_MEASURED = (1, 3, 64, 64)
_RUNS = 5

# Python specializes code that has run some ten times.
_CALLS = 12
# Several steps; the second stream reuses the memory that the first one allocated.
_LARGE = (4, 4, 256, 256)
_STREAMS = 2
_CHUNK_BYTES = 1 << 20
# Far more than the warm-up takes on an idle machine.
_TIMEOUT_S = 2.0
_GRACE_S = 0.5

_is_warm_up = ContextVar("_is_warm_up", default=False)


def check_backend(backend: Backend) -> float:
    """Evaluate every data type, compare with NumPy, and return the speed.

    The speed is in multiplications per second.

    Raises RuntimeError if the backend's bits differ.
    """
    preparer = Preparer(Limits(), TableCache())
    # Such a backend leaves tensors this small to the CPU, so its device is tested separately.
    all_of_it = [backend, backend.on_device()] if isinstance(backend, LeavesToCpu) else [backend]
    for data_type, dtype in tensors.DTYPES.items():
        data = np.linspace(-1, 1, math.prod(_SMALL)).astype(dtype).view(np.uint8)
        for operator in _OPERATORS:
            header = _header(operator, data_type, _SMALL)
            prepared = preparer.prepare(codec.read_request(header))
            specified = at_once(prepared, data.data, NumpyCpu()).tobytes()
            if any(at_once(prepared, data.data, one).tobytes() != specified for one in all_of_it):
                raise RuntimeError(
                    f"{backend.name} computes other bits than {NumpyCpu.name} for {operator.name} "
                    f"on {dtype}; choose --backend {NumpyCpu.name} and please report this"
                )
    return _rate(preparer, backend)


def _rate(preparer: Preparer, backend: Backend) -> float:
    """Measure a backend on a tensor whose evaluation takes some ten microseconds."""
    prepared = preparer.prepare(codec.read_request(_header(_LINEAR, _FLOAT32, _MEASURED)))
    data = np.ones(prepared.input.wire_bytes, np.uint8)
    seconds = math.inf
    for _ in range(_RUNS):
        began = time.perf_counter()
        at_once(prepared, data.data, backend)
        seconds = min(seconds, time.perf_counter() - began)
    return prepared.inline_work / seconds


async def warm_up_calls(handlers: grpc.GenericRpcHandler) -> None:
    """Call each kind of handler through gRPC, without log lines.

    Without a folder, a socket or enough time, the warm-up is incomplete and the first calls are
    slower.
    """
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers,))
    try:
        with _unheard(), tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
            address = f"unix:{folder}/warm-up"
            server.add_insecure_port(address)
            await server.start()
            try:
                async with (
                    asyncio.timeout(_TIMEOUT_S),
                    grpc.aio.insecure_channel(address) as channel,
                ):
                    await _call(channel)
            finally:
                # With a grace period: otherwise grpc's client, which is closing, logs the end.
                await server.stop(_GRACE_S)
    except Exception as error:  # noqa: BLE001 - a server that is slow at first is fine
        told = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
        _log.warning("warm-up calls failed", extra={"facts": {"error": told}})


@contextmanager
def _unheard() -> Generator[None]:
    """Keep calls out of the log.

    The calls are those of a server that is started in this context.
    """
    token = _is_warm_up.set(True)  # handlers run in the context in which their server started
    _log.addFilter(_is_of_callers)
    try:
        yield
    finally:
        _log.removeFilter(_is_of_callers)
        _is_warm_up.reset(token)


def _is_of_callers(_record: logging.LogRecord) -> bool:
    return not _is_warm_up.get()


async def _call(channel: grpc.aio.Channel) -> None:
    stub = v1.GradientServiceStub(channel)
    await stub.GetServerInfo(v1.GetServerInfoRequest())
    for number in range(_CALLS):
        await stub.Evaluate(_request(number))
    requests = (v1.EvaluateManyRequest(evaluation=_request(number)) for number in range(_CALLS))
    async for _result in stub.EvaluateMany(requests):
        pass
    for _ in range(_STREAMS):
        async for _response in stub.EvaluateStream(_messages()):
            pass


def _request(number: int) -> v1.EvaluateRequest:
    """Return a request whose size depends on number.

    Each one builds tables.
    """
    header = _header(_LINEAR, _FLOAT32, (*_SMALL[:3], _SMALL[3] + 2 * number))
    return v1.EvaluateRequest(
        request_id=str(number),
        operator=header.operator,
        input=header.input,
        output=header.output,
        data=bytes(4 * math.prod(header.input.sizes)),
    )


def _messages() -> Iterator[v1.EvaluateStreamRequest]:
    yield v1.EvaluateStreamRequest(open=_header(_LINEAR, _FLOAT32, _LARGE))
    # Once a block this large is freed, glibc keeps a few times its size for all smaller blocks;
    # before that it asks the system for memory each time.
    data = bytes(4 * math.prod(_LARGE))
    for offset in range(0, len(data), _CHUNK_BYTES):
        chunk = v1.Chunk(offset=offset, data=data[offset : offset + _CHUNK_BYTES])
        yield v1.EvaluateStreamRequest(chunk=chunk)


def _header(
    operator: ops.Operator, data_type: v1.DataType.ValueType, sizes: tuple[int, ...]
) -> v1.Open:
    """Return a header whose output halves the last two axes."""
    halved = (*sizes[:2], sizes[2] // 2, sizes[3] // 2)
    return v1.Open(
        operator=ops.to_message(operator),
        input=v1.TensorDescriptor(data_type=data_type, sizes=sizes),
        output=v1.TensorDescriptor(data_type=data_type, sizes=halved),
    )
