"""Which bytes of the result a stream is asked for."""

from __future__ import annotations

from gradwire import v1
from gradwire_server.engine import Prepared
from gradwire_server.errors import EvaluationChangedError, InvalidFieldError


def wanted_bytes(header: v1.Open, prepared: Prepared, digest: str) -> range:
    """Return the result bytes that a stream is to give.

    Raises InvalidFieldError where the result has no such bytes, EvaluationChangedError where they
    would be those of another evaluation than the one named.
    """
    total = prepared.output.wire_bytes
    first, stop = header.resume_from, header.stop_before or total
    if total == first == stop == 0:
        return _same_evaluation(header, digest, range(0))
    if not 0 <= first < total:
        there = f"the result has bytes 0 to {total - 1}" if total else "the result is empty: give 0"
        raise InvalidFieldError("open.resume_from", f"{first}; {there}")
    if not first < stop <= total:
        raise InvalidFieldError(
            "open.stop_before",
            f"{stop}; a result of {total} bytes that is wanted from byte {first} on ends before "
            f"byte {first + 1} to {total}, or 0 for all",
        )
    return _same_evaluation(header, digest, range(first, stop))


def _same_evaluation(header: v1.Open, digest: str, wanted: range) -> range:
    if header.evaluation_digest not in {"", digest}:
        raise EvaluationChangedError(
            f"open.evaluation_digest is {header.evaluation_digest:.64}; this server computes "
            f"{digest}: start again at byte 0 without a digest",
            digest=digest,
        )
    return wanted


def opened(
    output: v1.TensorDescriptor, wants: range, *, digest: str, max_chunk_bytes: int
) -> v1.EvaluateStreamResponse:
    """Answer open; wants are the input bytes to send."""
    return v1.EvaluateStreamResponse(
        opened=v1.Opened(
            output=output,
            read_from_byte=wants.start,
            read_before_byte=wants.stop,
            evaluation_digest=digest,
            max_chunk_bytes=max_chunk_bytes,
        )
    )
