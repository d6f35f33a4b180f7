"""One try of EvaluateStream as a blocking client waits for it."""

from __future__ import annotations

from gradwire._calls import Evaluation
from gradwire._channel import Link
from gradwire._tracing import Context, call_span
from gradwire.errors import GradwireError


def try_stream(evaluation: Evaluation, link: Link) -> GradwireError | None:
    """Run a try to its end; return what it failed with, if anything."""
    with call_span("EvaluateStream", target=link.target, bearer=link.bearer) as span:
        error = _watch(evaluation, link, metadata=span.metadata)
        span.note(error)
    return error


def _watch(evaluation: Evaluation, link: Link, *, metadata: Context | None) -> GradwireError | None:
    stream = evaluation.start_stream(link, metadata=metadata)
    try:
        while not stream.ended.wait(evaluation.next_look_s()):
            evaluation.look()
    except BaseException:
        stream.cancel()
        stream.ended.wait()
        raise
    return stream.outcome()
