"""Every error has a status and a reason, fits in a trailer, and tells nothing of the inside."""

import inspect
import logging
import re
import urllib.parse
from pathlib import Path

import pytest

import gradwire
import gradwire_server
from gradwire import v1
from gradwire_server import errors
from gradwire_server.backends import NumpyCpu
from gradwire_server.rpc.status_map import failure
from support.raw_calls import CODES, EVERY, REQUEST_ID, SERVICE, call, named, refused, rows
from support.refusals import DOMAIN, Refusal, check_in_band
from support.servers import served_many

# Errors of the Open Inference Protocol; metrics count them as unknown operators.
INFERENCE = {errors.UnknownModelError, errors.UnsupportedCallError}
SAMPLES = [
    errors.InvalidFieldError("operator.dml_resample_grad.scales[2]", "is nan; finite is needed"),
    errors.InvalidDataError("data", "3 bytes; the input's descriptor takes 4"),
    errors.UnknownFieldError("field 7 is not known", field_number=7),
    errors.UnknownOperatorError("operator 9 is not known", operator=9),
    errors.MessageTooLargeError("too large", limit="max_unary_bytes", allowed=5),
    errors.RequestLimitError("too many", limit="max_elements", allowed=5),
    errors.TableTooLargeError("too long", limit="max_table_entries", allowed=5),
    errors.LayoutNotStreamableError("held", limit="max_request_memory_bytes", allowed=5),
    errors.ServerFullError("full", retry_after_s=0.25),
    errors.StartingError("not yet", retry_after_s=0.25),
    errors.DeviceLostError("lost", retry_after_s=0.25),
    errors.UnauthenticatedError("none"),
    errors.MissingScopeError("not this"),
    errors.UnknownSegmentError("gone"),
    errors.ChecksumError("changed"),
    errors.StalledError("still"),
    errors.DrainingError("going"),
    errors.DigestMismatchError("other"),
]


def test_every_error_and_every_reason_has_the_other_with_the_status_of_the_schema():
    """The comment of each reason in error_reason.proto names its status."""
    classes = {each for _, each in inspect.getmembers(errors, inspect.isclass)}
    abstract = {errors.EvaluationError, errors.RetryLaterError}
    assert {type(error) for error in SAMPLES} == classes - abstract - INFERENCE
    others = [kind("secret") for kind in (MemoryError, TimeoutError, RuntimeError)]
    known = [failure(each) for each in (*SAMPLES, *others)]
    # Words of the interpreter are replaced by own ones.
    assert "secret" not in str([(each.message, each.facts) for each in known])
    subclass = type("NoMemoryError", (MemoryError,), {})
    assert failure(subclass("secret")) == failure(MemoryError())
    assert len({each.reason_name for each in known}) == len(known)
    assert {each.reason_name: each.code for each in known} == CODES
    given = {each.in_band().reason for each in known}
    assert given == set(v1.ErrorReason.values()) - {v1.ErrorReason.ERROR_REASON_UNSPECIFIED}


@pytest.mark.parametrize(
    "text",
    ["x" * 10**6, "\U0001f600" * 10**5, "%" * 10**5, "\x00\n\r\t" * 10**5, "\\" * 10**5],
    ids=["long", "wide", "percent", "control", "backslash"],
)
def test_message_and_details_fit_in_a_trailer_whatever_a_caller_wrote(text):
    facts = dict.fromkeys(("one", "two", "three"), text)
    error = errors.InvalidFieldError("operator.interpolate.sizes", f"is {text}", **facts)
    failed = failure(error).within(request_id="x" * 128, traceparent="t" * 55)
    assert failed.message.isascii()
    assert failed.message.isprintable()
    assert len(urllib.parse.quote(failed.message, safe=" \"'\\")) + len(failed.details()) < 4096


@pytest.mark.parametrize("error", SAMPLES, ids=lambda each: type(each).__name__)
def test_details_and_in_band_error_say_the_same(error):
    failed = failure(error).within(request_id="r")
    refusal = Refusal(failed.code, error.message, {}, failed.details(), failed.in_band())
    check_in_band(refusal)
    assert (refusal.status.code, refusal.status.message) == (failed.code.value[0], error.message)
    assert refusal.info.domain == DOMAIN
    assert dict(refusal.info.metadata) == {**error.facts, "request_id": "r"}
    assert bool(refusal.violations) == isinstance(error, errors.InvalidFieldError)
    assert (refusal.retry_after_s is not None) == isinstance(error, errors.RetryLaterError)


# What makes objects of any kind, or code, of bytes.
FORBIDDEN = re.compile(
    r"^\s*(import|from) (cloudpickle|code|codeop|dbm|dill|joblib|marshal|multiprocessing|pickle|"
    r"shelve|xmlrpc|yaml)\b|(?<![.\w])(__import__|compile|eval|exec)\(|allow_pickle=(?!False)",
    re.MULTILINE,
)
# Talks with processes that it starts itself, through pipes of their own.
WITH_OWN_PROCESSES = {"loadtest/runner.py", "loadtest/generator.py"}


@pytest.mark.parametrize("package", [gradwire_server, gradwire])
def test_nothing_here_makes_objects_or_code_of_bytes(package):
    paths = list(Path(package.__path__[0]).rglob("*.py"))
    assert len(paths) > 50
    for path in paths:
        found = {each[0].strip() for each in FORBIDDEN.finditer(path.read_text(encoding="utf-8"))}
        if "/".join(path.parts[-2:]) in WITH_OWN_PROCESSES:
            found -= {"import multiprocessing", "from multiprocessing"}
        assert not found, path


class _Faulty(NumpyCpu):
    """A backend whose faults tell of the machine, for all but rows of eight elements."""

    def apply(self, plan, x, y):
        if plan.input_shape[-1] != 8:
            raise RuntimeError(f"no room in {__file__}, user root, token s3cret")
        super().apply(plan, x, y)


def test_a_fault_tells_its_request_id_and_nothing_of_the_machine_and_harms_no_other_request(caplog):
    with served_many(backend=_Faulty()) as (_server, client, many):
        said = []
        for name in (f"{SERVICE}/Evaluate", f"{SERVICE}/EvaluateStream"):
            replies, refusal = call(client.channel, name, EVERY[name])
            said += [refused(refusal, "INTERNAL"), replies]
        many.send(named(rows(5), "bad"), named(rows(4), "good"))
        answers = many.answers()
    assert answers["good"].WhichOneof("outcome") == "result"
    error = answers["bad"].error
    assert error.reason == v1.ErrorReason.ERROR_REASON_INTERNAL
    for word in ("s3cret", "root", ".py", "Traceback", "RuntimeError"):
        assert word not in str([*said, error])
    logged = [each for each in caplog.records if each.levelno == logging.ERROR]
    names = [vars(each)["facts"]["request_id"] for each in logged]
    assert names == [REQUEST_ID, REQUEST_ID, "bad"]
    assert caplog.text.count("s3cret") >= 3
