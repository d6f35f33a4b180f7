"""Whatever a server answers, the SDK has a result or an error of its own, and its threads end."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from fuzz.run import read
from fuzz.targets import pieces
from gradwire import Client, GradwireError, Item, RetryPolicy, errors, ops
from gradwire._wire.framing import chunk_frame
from support.clients import ONCE
from support.examples import examples
from support.raw_calls import wait_until

HALVE = ops.InterpolateBackward(mode="linear", data_format="NCX")
SMALL = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
KEPT = {name: read(name) for name in ("answer", "answers", "streamed", "statuses")}


class Strange(grpc.GenericRpcHandler):
    """Answers every call with the messages and the status it was told, None for OK.

    It has two ports, so that calls can be split between them.
    """

    def __init__(self):
        self.messages = []
        self.code = None
        self.details = b""
        self.calls = 0
        self.addresses = []

    def service(self, handler_call_details):
        return grpc.stream_stream_rpc_method_handler(self._answer)

    def _answer(self, _requests, context):
        self.calls += 1
        yield from self.messages
        if self.code is not None:
            trailers = (("grpc-status-details-bin", self.details), ("gradwire-timing", "?;dur=x"))
            context.set_trailing_metadata(trailers)
            context.abort(self.code, "a strange server")


@pytest.fixture(scope="module")
def strange():
    handler = Strange()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    ports = [server.add_insecure_port("127.0.0.1:0") for _ in range(2)]
    handler.addresses = [f"127.0.0.1:{port}" for port in ports]
    server.start()
    yield handler
    server.stop(None).wait()


ANSWERS = st.sampled_from(KEPT["answer"] + KEPT["answers"]) | st.binary(max_size=40)
STREAMED = st.sampled_from(KEPT["streamed"]).map(lambda data: list(pieces(data)))


@pytest.mark.parametrize("way", ["unary", "stream", "split", "many"])
@examples(30)
@given(
    messages=st.lists(ANSWERS, max_size=3) | STREAMED,
    code=st.none() | st.sampled_from([each for each in grpc.StatusCode if each.value[0]]),
    details=st.sampled_from(KEPT["statuses"]) | st.binary(max_size=40),
)
def test_an_answer_is_a_result_or_an_error_of_the_sdk(strange, way, messages, code, details):
    # Of a second message to a unary call grpc itself takes no note, until the deadline.
    strange.messages = messages[:1] if way == "unary" else messages
    strange.code, strange.details = code, details
    client = Client(
        strange.addresses,
        retry=ONCE,
        timeout_s=2.0,
        stream_threshold_bytes=0 if way in {"stream", "split"} else 1 << 20,
        split=way == "split",
        split_threshold_bytes=0,
    )
    with contextlib.suppress(GradwireError), client:
        if way == "many":
            result = next(client.evaluate_many([Item(HALVE, SMALL, (1, 1, 3))]))
        else:
            result = client.evaluate(HALVE, SMALL, output_shape=(1, 1, 3))
        assert result.shape == (1, 1, 3)
        assert result.dtype == np.float32
    ours = {"gradwire-receiver", "gradwire-watch", "gradwire-split", "gradwire-share"}
    wait_until(lambda: not ours & {each.name for each in threading.enumerate()})


@pytest.mark.parametrize("threshold", [0, 1 << 20], ids=["stream", "unary"])
def test_an_error_that_no_retry_mends_is_not_retried(strange, threshold):
    strange.messages, strange.details, strange.calls = [], b"", 0
    strange.code = grpc.StatusCode.INVALID_ARGUMENT
    retry = RetryPolicy(initial_backoff_s=0.01)
    client = Client(strange.addresses[0], retry=retry, stream_threshold_bytes=threshold)
    with client, pytest.raises(errors.InvalidRequestError):
        client.evaluate(HALVE, SMALL, output_shape=(1, 1, 3))
    assert strange.calls == 1


def test_a_chunk_before_opened_and_a_layout_refused_in_every_order_are_errors(strange):
    options = {"retry": ONCE, "stream_threshold_bytes": 0}
    strange.code = None
    with Client(strange.addresses[0], checksums=True, **options) as client:
        for after in (None, 0):
            strange.messages = [chunk_frame(0, bytes(12), after)]
            with pytest.raises(errors.DataLossError, match="a chunk came before opened"):
                client.evaluate(HALVE, SMALL, output_shape=(1, 1, 3))
    status = status_pb2.Status()
    info = error_details_pb2.ErrorInfo(reason="LAYOUT_NOT_STREAMABLE", domain="gradwire.v1")
    status.details.add().Pack(info)
    strange.messages, strange.code = [], grpc.StatusCode.FAILED_PRECONDITION
    strange.details = status.SerializeToString()
    out = np.empty((1, 6, 1), np.float32).transpose(0, 2, 1)
    with (
        Client(strange.addresses[0], **options) as client,
        pytest.raises(errors.LimitExceededError),
    ):
        client.evaluate(HALVE, SMALL, out=out, timeout_s=5.0)
