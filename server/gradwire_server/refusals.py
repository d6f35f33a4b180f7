"""Refusals of unary calls by a full server, in little time: under overload most calls are refused.

What a call is refused for is settled by its header alone where one like it came before, so nothing
is made for it that a call in flight has. Whatever is not as usual is left to the general way.
"""

from __future__ import annotations

import logging
import time
from functools import lru_cache

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from gradwire._framing import read_evaluation
from gradwire_server import calls
from gradwire_server.callers import claim_of
from gradwire_server.calls import ActiveCalls, Call, Context, Metadata
from gradwire_server.engine import Admission, EvaluationRequest
from gradwire_server.errors import OverloadedError
from gradwire_server.failures import DOMAIN, STATUS, failure
from gradwire_server.phases import Phases
from gradwire_server.recipes import Recipes
from gradwire_server.wire import MAX_REQUEST_ID

_log = logging.getLogger("gradwire_server")

_METHOD = "Evaluate"
_CODE = STATUS[OverloadedError][0]
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
# Lengths below this take one byte.
_ONE_BYTE = 1 << 7
_NO_TIME = Phases().told()


class QuickRefusals:
    """Refuses calls like those before. Used from one event loop only."""

    def __init__(self, admission: Admission, recipes: Recipes, active: ActiveCalls) -> None:
        self._admission = admission
        self._recipes = recipes
        self._active = active

    def refuse(self, message: bytes, context: Context, metadata: Metadata) -> bool:
        """Refuse a call if that is due; False where it is for the general way."""
        admission = self._admission
        if not admission.has_waiting or self._active.observer.tracer is not None:
            return False
        started = time.perf_counter()
        parts = read_evaluation(message)
        recipe = None if parts is None else self._recipes.get(parts[1])
        if parts is None or recipe is None or recipe.inline:
            return False
        name, request = parts[0].decode("latin-1"), recipe.evaluation.request
        unusual = len(name) > MAX_REQUEST_ID or not (name.isascii() and name.isprintable())
        if unusual or len(parts[2]) != request.input.wire_bytes:
            return False
        if not admission.has_room(recipe.memory_bytes) or _log.isEnabledFor(logging.DEBUG):
            return False
        refused = admission.refusal(claim_of(recipe.evaluation, context))
        if refused is None:
            return False
        names = name or calls.new_request_id(), calls.traceparent_of(metadata)
        details = "grpc-status-details-bin", overload_details(refused, *names)
        context.set_code(_CODE)
        context.set_details(refused.message)
        context.set_trailing_metadata((*calls.trailers(*names, _NO_TIME), details))
        self._note(refused, context, names, request, started)
        return True

    def _note(
        self,
        refused: OverloadedError,
        context: Context,
        names: tuple[str, str],
        request: EvaluationRequest,
        started: float,
    ) -> None:
        """Count it, where anybody wants to know."""
        self._active.refusals.note(refused.facts["limit"])
        if self._active.observer.recorder is None:
            return
        call = Call(_METHOD, context, self._active, request_id=names[0], traceparent=names[1])
        call.note_request(request.operator, request.input, received=request.input.wire_bytes)
        seconds = time.perf_counter() - started
        call.count(_CODE.name, duration_s=seconds, failed=failure(refused))


def overload_details(refused: OverloadedError, request_id: str, traceparent: str) -> bytes:
    """Encode what Failure.details() would, of ASCII, without a message for each part."""
    facts = {**refused.facts, "request_id": request_id, "traceparent": traceparent}
    entries = (_field(3, _field(1, name) + _field(2, fact)) for name, fact in facts.items())
    info = f"{_field(1, 'OVERLOADED')}{_field(2, DOMAIN)}{''.join(entries)}"
    packed = _field(3, _field(1, _ERROR_INFO) + _field(2, info))
    status = f"\x08{chr(_CODE.value[0])}{_field(2, refused.message)}{packed}"
    return status.encode("latin-1") + _retry_info(refused.retry_after_s)


def _field(number: int, text: str) -> str:
    """Encode a field of text, or of a message, one character for each byte."""
    size = len(text)
    length = chr(size) if size < _ONE_BYTE else chr(size % _ONE_BYTE + _ONE_BYTE) + chr(size >> 7)
    return f"{chr(number << 3 | 2)}{length}{text}"


@lru_cache(maxsize=1 << 12)
def _retry_info(seconds: float) -> bytes:
    """Encode the field of a status; callers are told whole milliseconds."""
    delay = Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    packed = AnyMessage()
    packed.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    encoded = packed.SerializeToString()
    return _field(3, encoded.decode("latin-1")).encode("latin-1")
