"""Small unary calls that are like one before: little is done for each.

What a call costs here is not its arithmetic but how much of the interpreter it touches. So a
request is known by its bytes, the kernel reads and writes memory that stays where it is, and the
whole call is done at once: nothing else runs on the event loop meanwhile, so that nobody would see
what it holds, or in which phase it is.

Whatever is not as usual is left to the general way, before anything was done about it: there errors
are made, and limits explained.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from gradwire_server import calls, encoding, logs
from gradwire_server.backends import Backend, bound
from gradwire_server.backends.float_environment import default_float_environment, is_default
from gradwire_server.calls import ActiveCalls, Call, Context, Metadata
from gradwire_server.engine import EvaluationRequest
from gradwire_server.recipes import Recipe

# Of the input and of the result.
_MOST_BYTES = 1 << 16
# Calls that are kept, by their length; those of one length are told apart one by one.
_MOST_LENGTHS = 64
_MOST_OF_A_LENGTH = 4
_METHOD = "Evaluate"
# As Phases.told() has it.
_TIMING = "receive;dur=0.000, queue;dur=0.000, compute;dur=%.3f, send;dur=%.3f"
# With its tag and its length, which takes one byte.
_LONGEST_NAME = 2 + 0x7F


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A call but for its request_id and data.

    before  the bytes between those two
    nbytes  of the data
    needed  bytes of memory, by the rules of admission
    run     computes the result of what is in the input's memory
    after   the bytes between the answer's request_id and its data
    result  the memory of its data
    """

    request: EvaluationRequest
    before: bytes
    nbytes: int
    needed: int
    run: Callable[[], None]
    after: bytes
    result: memoryview


class SmallCalls:
    """Remembers small calls and answers those like them. Used from one event loop only.

    room  tells whether there is room for so many bytes of memory
    """

    def __init__(
        self, backend: Backend, active: ActiveCalls, *, room: Callable[[int], bool]
    ) -> None:
        self._backend = backend
        self._active = active
        self._room = room
        self._known: dict[int, list[_Known]] = {}
        # Of one call at a time.
        self._input = np.empty(_MOST_BYTES, np.uint8)
        self._result = np.empty(_MOST_BYTES, np.uint8)
        self._input_bytes = self._input.data

    def keep(self, header: bytes, recipe: Recipe) -> None:
        """Remember what requests with this header need, if that is little."""
        evaluation = recipe.evaluation
        plan, dtype = evaluation.whole, evaluation.input.dtype
        nbytes, result_bytes = evaluation.input.wire_bytes, evaluation.output.wire_bytes
        if plan is None or max(nbytes, result_bytes) > _MOST_BYTES:
            return
        x = self._input[:nbytes].view(dtype).reshape(plan.input_shape)
        result = self._result[:result_bytes]
        y = result.view(dtype).reshape(plan.output_shape)
        before = header + encoding.before_data(nbytes)
        run = bound(self._backend, plan, x, y)
        after = recipe.header + encoding.before_data(result_bytes)
        needed = recipe.memory_bytes
        known = _Known(evaluation.request, before, nbytes, needed, run, after, result.data)
        alike = self._known.setdefault(len(before) + nbytes, [])
        alike.insert(0, known)
        del alike[_MOST_OF_A_LENGTH:]
        if len(self._known) > _MOST_LENGTHS:
            del self._known[next(iter(self._known))]

    def answer(self, message: bytes, context: Context, metadata: Metadata) -> bytes | None:
        """Return the answer to a request; None where it is for the general way."""
        if self._active.observer.tracer is not None:
            return None  # a span that begins late would not hold its phases
        started = time.perf_counter()
        # Where the request_id ends: it comes first, and has a length of one byte.
        start = 0
        if message[:1] == b"\x0a" and len(message) > 1:
            start = 2 + message[1]
        known = self._find(message, start)
        if known is None or not self._room(known.needed):
            return None
        request_id = message[2:start].decode("latin-1")
        if start > _LONGEST_NAME or not (request_id.isascii() and request_id.isprintable()):
            return None
        began = time.perf_counter()
        self._input_bytes[: known.nbytes] = memoryview(message)[-known.nbytes :]
        try:
            if is_default():
                known.run()
            else:
                with default_float_environment():
                    known.run()
        except Exception:  # noqa: BLE001 - it will be raised again where it is told
            return None
        computed = time.perf_counter()
        name = request_id or calls.new_request_id()
        named = message[:start] if request_id else encoding.request_id(name)
        reply = b"".join((named, known.after, known.result))
        traceparent = calls.traceparent_of(metadata)
        ended = time.perf_counter()
        timing = _TIMING % (1e3 * (computed - began), 1e3 * (ended - computed))
        context.set_trailing_metadata(calls.trailers(name, traceparent, timing))
        facts = partial(_facts, known, ended - started, name, traceparent)
        logs.tell(self._active.success_level, "call", facts)
        if self._active.observer.recorder is not None:
            call = Call(_METHOD, context, self._active, request_id=name, traceparent=traceparent)
            call.note_request(known.request.operator, known.request.input, received=known.nbytes)
            call.sent_bytes = len(known.result)
            call.phases.note("compute", began, computed)
            call.phases.note("send", computed, ended)
            call.count("OK", duration_s=ended - started)
        return reply

    def _find(self, message: bytes, start: int) -> _Known | None:
        for known in self._known.get(len(message) - start, ()):
            if message.startswith(known.before, start):
                return known
        return None


def _facts(
    known: _Known, seconds: float, request_id: str, traceparent: str
) -> Mapping[str, object]:
    request = known.request
    more = {"operator": request.operator, "sizes": request.input.sizes}
    return calls.facts_of(_METHOD, "OK", seconds, names=(request_id, traceparent), more=more)
