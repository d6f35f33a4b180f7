"""One table of access, by what a caller shows and from where; certificates that change."""

import http.client
import logging
import re
import socket
import ssl
import time
from base64 import b64encode
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
import trustme

import gradwire
import gradwire_server
from gradwire import v1
from gradwire._wire.environment import VERSION
from gradwire.v1 import gradient_service_pb2
from gradwire_server.config.addresses import split
from gradwire_server.config.settings import Settings
from gradwire_server.config.tokens import Scope, add_token, revoke_token
from gradwire_server.rpc.health import HAS_LIST
from gradwire_server.rpc.interceptors import INSPECTING
from gradwire_server.security.certificates import load_certificates
from support import raw_calls
from support.certificates import Pair, Papers, pair, trusting
from support.load import repeated
from support.processes import running_command
from support.raw_calls import EVERY, SERVICE, SHARED, RawClient, bearer, call, refused, wait_until
from support.scraping import get, scrape
from support.servers import ServerThread, served, serving, wait_idle

YESTERDAY = datetime.now(UTC).date() - timedelta(days=2)
TOMORROW = datetime.now(UTC) + timedelta(days=1)
NEEDED = {method: scope for scope, methods in raw_calls.REQUESTS.items() for method in methods}
# Names like those of methods.
STRANGE = (
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.health.v1.Health/../gradwire.v1.GradientService/GetServerInfo",
    f"/{SERVICE}/Evaluate",
    f"{SERVICE}/GetServerInfo/",
    f"{SERVICE}/GetServerInfo?service=grpc.health.v1.Health",
    "/gradwire.v1.gradientservice/getserverinfo",
    "/a/b",
)
METHODS = (*EVERY, SHARED, raw_calls.UNKNOWN, *STRANGE)
OPEN = tuple(f"/grpc.health.v1.Health/{method}" for method in ("Check", *["List"] * HAS_LIST))
# Paths of the HTTP port, and what they answer to callers who may inspect.
PATHS = {
    **dict.fromkeys(("/", "/status.json", "/metrics"), 200),
    **dict.fromkeys(("/nothing", "//metrics", "/healthz/../metrics"), 404),
}
HEALTH_PATHS = ("/healthz", "/readyz")
IN_BAND = {f"{SERVICE}/EvaluateStream", f"{SERVICE}/EvaluateMany"}

# Headers that a caller shows, and the scopes that these open; None where they are not taken.
SHOWN = {
    "nothing": ([], None),
    "an empty word": (["authorization: "], None),
    "a bare token": (["authorization: {both}"], None),
    "Basic": (["authorization: Basic {both}"], None),
    "more": (["authorization: Bearer {both}x"], None),
    "an expired token": (["authorization: Bearer {expired}"], None),
    "a revoked token": (["authorization: Bearer {revoked}"], None),
    "two tokens": (["authorization: Bearer {both}"] * 2, None),
    "another header": (["x-authorization: Bearer {both}"], None),
    "evaluate": (["authorization: Bearer {evaluate}"], {"evaluate"}),
    "inspect": (["authorization: Bearer {inspect}"], {"inspect"}),
    "both": (["authorization: Bearer {both}"], {"evaluate", "inspect"}),
}
# The same over HTTP, and what browsers send.
HTTP_SHOWN = {
    **{name: row for name, row in SHOWN.items() if name != "two tokens"},
    "a password": (["authorization: Basic {may}"], {"inspect"}),
    "a password that may not": (["authorization: Basic {may_not}"], {"evaluate"}),
    "a user": (["authorization: Basic {user}"], None),
    "no base64": (["authorization: Basic ="], None),
    "no ASCII": (["authorization: Bearer \xff"], None),
}


class Place(NamedTuple):
    """A server with tokens, and certificates where it lets in clients of its authority only.

    pair  the certificate of a client, where one is asked for
    """

    server: ServerThread
    papers: Papers | None
    pair: Pair | None
    tokens: dict[str, str]

    def headers(self, *lines):
        pairs = (line.format(**self.tokens).partition(": ") for line in lines)
        return [(name, value) for name, _, value in pairs]

    def client(self, shown):
        """Connect with a certificate, or in plain text."""
        if self.papers is None:
            return RawClient(self.server.address)
        return RawClient(self.server.address, trusting(self.papers.roots, shown))

    def ask(self, path, headers, shown):
        """Return what the HTTP port answers; raise OSError where it does not."""
        address = self.server.http_address
        connection = http.client.HTTPConnection(address, timeout=30)
        if self.papers is not None:
            context = self.papers.context(shown)
            connection = http.client.HTTPSConnection(address, timeout=30, context=context)
        with closing(connection):
            connection.request("GET", path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, f"{answer.headers}{answer.read().decode()}"

    def check_silent(self, told):
        """Assert that a refusal tells nothing of the server, nor a token."""
        name = self.server.server.service.backend.name
        for secret in (VERSION, name, "is-revoked", "/tokens", "Traceback", *self.tokens.values()):
            assert secret not in told


LISTENING = [("127.0.0.1:0", False), ("127.0.0.1:0", True), ("unix:{}/s", False)]


@pytest.fixture(scope="module", params=LISTENING, ids=str)
def place(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    file = folder / "tokens"
    tokens = {scope.value: add_token(file, name=f"is-{scope}", scopes=[scope]) for scope in Scope}
    for name, expires in (("both", None), ("revoked", None), ("expired", YESTERDAY)):
        tokens[name] = add_token(file, name=f"is-{name}", scopes=list(Scope), expires=expires)
    revoke_token(file, "is-revoked")
    for name, text in (("may", "a:{inspect}"), ("user", "{both}:"), ("may_not", "a:{evaluate}")):
        tokens[name] = b64encode(text.format(**tokens).encode()).decode()
    address, tls = request.param
    papers = Papers(folder) if tls else None
    listening = {"address": address.format(folder), "http_port": "0", "tokens": str(file)}
    with serving(**listening, **(papers.mutual if papers else {})) as server:
        yield Place(server, papers, pair(papers.authority) if papers else None, tokens)


def test_every_method_has_a_scope():
    (service,) = gradient_service_pb2.DESCRIPTOR.services_by_name.values()
    assert {f"{SERVICE}/{method.name}" for method in service.methods} == EVERY.keys() - {
        raw_calls.REFLECTION
    } | {SHARED}
    assert INSPECTING & NEEDED.keys() == raw_calls.REQUESTS["inspect"].keys()


@pytest.mark.parametrize("shown", SHOWN)
def test_a_method_is_open_to_its_scope_and_refused_to_all_others(place, shown):
    lines, scopes = SHOWN[shown]
    headers = place.headers(*lines)
    with place.client(place.pair) as client:
        for method in METHODS:
            replies, refusal = call(client.channel, method, EVERY.get(method, (b"",)), *headers)
            needed = NEEDED.get(method, "evaluate")
            if scopes is not None and needed in scopes:
                if method in EVERY:
                    assert (bool(replies), refusal) == (True, None)
                elif method != SHARED:  # which only callers with registered memory may use
                    assert refusal is not None
                    assert refusal.code is grpc.StatusCode.UNIMPLEMENTED, method
                continue
            told = refused(refusal, "UNAUTHENTICATED" if scopes is None else "PERMISSION_DENIED")
            assert scopes is None or f"lacks the scope {needed}" in told.message
            place.check_silent(repr(told))
            # grpc sends an empty message before the status of a unary call that fails.
            said = [reply for reply in replies if reply]
            assert len(said) == (method in IN_BAND), "streams say it in a message besides"
        for method in OPEN:
            assert call(client.channel, method, (b"",), *headers)[1] is None


@pytest.mark.parametrize("shown", HTTP_SHOWN)
def test_the_http_port_is_open_to_inspect_and_its_health_to_all(place, shown):
    lines, scopes = HTTP_SHOWN[shown]
    headers = place.headers(*lines)
    for path, found in PATHS.items():
        status, told = place.ask(path, headers, place.pair)
        if scopes is not None and "inspect" in scopes:
            assert status == found
            continue
        assert status == (401 if scopes is None else 403)
        challenged = re.search(r'^WWW-Authenticate: Basic .*, Bearer realm="', told, re.MULTILINE)
        assert bool(challenged) == (status == 401)
        place.check_silent(told)
    for path in HEALTH_PATHS:
        assert place.ask(path, headers, place.pair)[0] == 200


@pytest.mark.parametrize("place", [LISTENING[1]], indirect=True, ids=str)
@pytest.mark.parametrize("wrong", ["none", "another's", "expired", "of tomorrow", "plain text"])
def test_without_a_certificate_a_token_and_a_question_of_health_get_nowhere(place, wrong):
    assert place.papers is not None
    authority = place.papers.authority
    later = authority.issue_cert("client.test", not_before=TOMORROW)
    shown = {
        "another's": pair(trustme.CA()),
        "expired": pair(authority, expired=True),
        "of tomorrow": (later.private_key_pem.bytes(), later.cert_chain_pems[0].bytes()),
    }.get(wrong)
    tls = wrong != "plain text"
    used = place if tls else place._replace(papers=None)
    headers = place.headers("authorization: Bearer {inspect}")
    with used.client(shown) as client:
        for method in (*METHODS, *OPEN):
            replies, refusal = call(client.channel, method, (b"",), *headers)
            assert refusal is not None
            assert (refusal.code, replies) == (grpc.StatusCode.UNAVAILABLE, [])
    for path, status in {**PATHS, **dict.fromkeys(HEALTH_PATHS, 200)}.items():
        if shown is not None:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                used.ask(path, headers, shown)
        else:
            # Probes of health and readers with tokens need no certificate.
            assert used.ask(path, headers, None)[0] == (status if tls else 400)


def test_a_stream_is_refused_before_it_is_read_and_takes_no_room_of_others(place):
    admission = place.server.server.service.admission
    entered = admission.entered
    with place.client(place.pair) as client, raw_calls.silence(()) as never:
        for method in (f"{SERVICE}/Evaluate", f"{SERVICE}/EvaluateStream", raw_calls.REFLECTION):
            nothing = never()
            refused(call(client.channel, method, nothing)[1], "UNAUTHENTICATED")
        for method, complete in EVERY.items():
            call(client.channel, method, complete, bearer("none"))
    assert admission.entered == entered
    wait_idle(place.server)


@pytest.mark.parametrize("place", [LISTENING[0]], indirect=True, ids=str)
@pytest.mark.parametrize("port", ["grpc", "http"])
def test_the_log_counts_refusals_and_names_no_token(place, caplog, port):
    caplog.set_level("INFO", "gradwire_server")
    tokens = place.tokens["revoked"], place.tokens["both"]
    revoked, both = map(bearer, tokens)
    with place.client(place.pair) as client:

        def told():
            if port == "http":
                place.ask("/metrics", [revoked], place.pair)
            else:
                call(client.channel, f"{SERVICE}/Evaluate", (b"",), revoked)
            lines = [vars(each) for each in caplog.records if each.getMessage() == "refused"]
            every = [line["facts"] for line in lines]
            return [facts for facts in every if facts.get("port", "grpc") == port]

        began = time.monotonic()
        wait_until(told)
        facts = [told() for _ in range(20)][-1]
        seconds = time.monotonic() - began
        call(client.channel, f"{SERVICE}/ListOperators", (b"",), both)
    assert len(facts) <= 2 + seconds
    if port == "http":
        assert facts[0]["unauthenticated"]
        assert str(facts[0]["peer"]).startswith("ipv4:127.0.0.1:")
    lines = str([vars(each) for each in caplog.records])
    assert not [token for token in tokens if token in lines]


@pytest.mark.parametrize(
    ("scopes", "certified", "allowed"),
    [
        ({}, False, {"evaluate"}),
        ({"anonymous_scopes": ""}, False, set()),
        ({"anonymous_scopes": "evaluate,inspect"}, False, {"evaluate", "inspect"}),
        ({"anonymous_scopes": ""}, True, {"evaluate", "inspect"}),
    ],
    ids=["default", "none", "all", "certificate"],
)
def test_callers_of_other_machines_have_the_scopes_of_strangers_or_a_certificate(
    tmp_path, scopes, allowed, certified
):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if probe.connect_ex(("192.0.2.1", 9)):  # which sends nothing
            pytest.skip("this machine has no address but loopback")
        own = probe.getsockname()[0]
    papers = Papers(tmp_path)
    papers.write(name=own)
    settings = papers.mutual if certified else {"insecure": True}
    credentials = trusting(papers.roots, pair(papers.authority)) if certified else None
    http = {"http_port": f"{own}:0"} if certified else {}
    with (
        serving(address=f"{own}:0", **http, **settings, **scopes) as server,
        RawClient(server.address, credentials) as client,
    ):
        for method, messages in EVERY.items():
            replies, refusal = call(client.channel, method, messages)
            if NEEDED[method] in allowed:
                assert (bool(replies), refusal) == (True, None)
            else:
                refused(refusal, "PERMISSION_DENIED")
        assert call(client.channel, raw_calls.HEALTH, (b"",)) == ([b"\x08\x01"], None)
        if certified:
            for shown, status in ((None, 403), (pair(papers.authority), 200)):
                tls = papers.context(shown)
                assert get(server.http_address, "/", tls=tls)[0] == status
                assert get(server.http_address, "/healthz", tls=tls)[0] == 200


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "unix:{}/socket"])
def test_this_machine_may_do_all_and_in_any_way(address, tmp_path):
    with served(address=address.format(tmp_path), anonymous_scopes="") as (server, client):
        client.check_alive()
        for method, messages in EVERY.items():
            replies, refusal = call(client.channel, method, messages)
            assert (bool(replies), refusal) == (True, None)
        assert client.stub.GetServerInfo(v1.GetServerInfoRequest()).backend
        # A call that is asked whence it comes fails as any other does.
        refused(raw_calls.send_bytes(client, "Evaluate"), "INVALID_DATA", field="message")
        refused(client.evaluate(raw_calls.identity_request(1)), "INVALID_DATA", field="data")
        wait_idle(server)


@pytest.fixture
def papers(tmp_path):
    return Papers(tmp_path)


def is_served(address, roots, shown=None):
    """Call on a connection of its own."""
    with RawClient(address, trusting(roots, shown)) as client:
        refusal = client.evaluate(raw_calls.published_request(), timeout_s=20).refusal
    assert refusal is None or refusal.code is grpc.StatusCode.UNAVAILABLE, refusal
    return refusal is None


def test_new_connections_get_the_new_certificate_and_those_of_new_authorities_are_let_in(papers):
    other = trustme.CA()
    roots = other.cert_pem.bytes()
    ours, theirs = pair(papers.authority), pair(other)
    with serving(**papers.mutual, http_port="0") as server:
        http = split(server.http_address)
        first = ssl.get_server_certificate(http)
        assert not is_served(server.address, papers.roots, theirs)
        with RawClient(server.address, trusting(papers.roots, ours)) as old:
            old.check_alive()
            papers.write(other)
            wait_until(lambda: is_served(server.address, roots, ours))
            assert not is_served(server.address, papers.roots, ours)
            wait_until(lambda: ssl.get_server_certificate(http) != first)
            papers.write_authorities(papers.authority, other)
            wait_until(lambda: is_served(server.address, roots, theirs))
            assert is_served(server.address, roots, ours)
            papers.write_authorities(other)
            wait_until(lambda: not is_served(server.address, roots, ours))
            assert is_served(server.address, roots, theirs)
            old.check_alive()
        papers.write()
        wait_until(lambda: is_served(server.address, papers.roots, theirs))


def told(caplog):
    """Return the server's lines of certificates."""
    messages = [each.getMessage() for each in caplog.records if each.name == "gradwire_server"]
    return [message for message in messages if message.startswith("certificate")]


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("chain.pem", (b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nx\n")),
        ("key.pem", (b"", b"-----BEGIN PRIVATE KEY-----\nx\n", pair(trustme.CA())[0])),
        ("ca.pem", (b"", b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")),
    ],
    ids=["chain.pem", "key.pem", "ca.pem"],
)
def test_what_cannot_be_used_is_refused_at_first_and_kept_out_later(papers, name, broken, caplog):
    shown, good = pair(papers.authority), papers.read(name)
    with serving(**papers.mutual) as server, caplog.at_level(logging.ERROR, "gradwire_server"):
        for content in broken:
            caplog.clear()
            papers.put(name, content)
            with pytest.raises(ValueError, match=r"^--tls-"):
                load_certificates(Settings(**papers.mutual))
            wait_until(lambda: is_served(server.address, papers.roots, shown) and told(caplog))
            assert told(caplog) == ["certificates cannot be used"]
            assert "PRIVATE" not in str([vars(each) for each in caplog.records])
        papers.put(name, good)
        assert is_served(server.address, papers.roots, shown)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_rotation_of_certificates_and_tokens_under_load_loses_no_call(
    papers, path, tmp_path, workers
):
    """Clients trust both authorities, as one has them do; each call has its own connection."""
    other = trustme.CA()
    roots, shown = papers.roots + other.cert_pem.bytes(), pair(papers.authority)
    tokens = [add_token(path, name="0", scopes=list(Scope))]

    def code(method, token, roots=roots):
        with RawClient(server.address, trusting(roots, shown)) as client:
            refusal = call(client.channel, method, EVERY[method], bearer(token))[1]
        return grpc.StatusCode.OK if refusal is None else refusal.code

    def ask():
        codes = [code(method, tokens[-1]) for method in EVERY]
        return None if set(codes) == {grpc.StatusCode.OK} else codes

    def are(expected, token, roots):
        """Ask on connections of their own, which any worker may take."""
        method = f"{SERVICE}/ListOperators"
        return all(code(method, token, roots) is expected for _ in range(8))

    flags = [*papers.flags, f"--tls-client-ca={papers.mutual['tls_client_ca']}", "--no-warm-up"]
    flags += ["--tokens", str(path), "--workers", workers]
    with running_command(*flags, log=tmp_path / "log") as server, repeated(ask) as load:
        for number, authority in enumerate((other, papers.authority, other)):
            papers.write(authority)
            papers.write_authorities(papers.authority, authority)
            # Taken at once by each worker; then the old one is revoked, and none takes it.
            tokens.append(add_token(path, name=str(number + 1), scopes=list(Scope)))
            load.wait_for_more(6)
            revoke_token(path, str(number))
            own = authority.cert_pem.bytes()
            wait_until(partial(are, grpc.StatusCode.OK, tokens[-1], own))
            wait_until(partial(are, grpc.StatusCode.UNAUTHENTICATED, tokens[-2], own))
    assert not [token for token in tokens if token in server.log]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_is_1_2_or_newer_on_both_ports(papers):
    def shakes_hands(place, version):
        context = papers.context()
        # Or OpenSSL would not even ask for one as old.
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2", "http/1.1"])
        try:
            with (
                socket.create_connection(place) as plain,
                context.wrap_socket(plain, server_hostname=place[0]),
            ):
                return True
        except OSError:
            return False

    with serving(**papers.settings, http_port="0") as server:
        for place in map(split, (server.address, server.http_address)):
            versions = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
            assert [shakes_hands(place, each) for each in versions] == [False, True, True]
        assert get(server.http_address, "/")[0] == 400


def test_the_http_port_shows_a_replaced_certificate_and_tells_when_it_expires(papers):
    def shown():
        told = scrape(server.http_address, tls=papers.context())
        ends_s = told.value("gradwire_certificate_expiration_timestamp_seconds")
        return ssl.get_server_certificate(split(server.http_address)), ends_s

    ends = [datetime(2100 + years, 1, 2, 3, 4, 5, tzinfo=UTC) for years in (0, 1)]
    papers.write(not_after=ends[0])
    with serving(**papers.settings, http_port="0") as server:
        first, expires_s = shown()
        assert expires_s == ends[0].timestamp()
        papers.write(not_after=ends[1])
        wait_until(lambda: shown()[0] != first and shown()[1] == ends[1].timestamp())
        papers.put("chain.pem", b"nothing")
        assert get(server.http_address, "/", tls=papers.context())[0] == 200


# Imports and calls that make objects of any kind, or code, of bytes.
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
