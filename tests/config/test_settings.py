"""Every setting is a field, a flag, a variable and a key of a file; containers limit some."""

import json
import os
import re
from dataclasses import fields

import pytest
from click.testing import CliRunner

from gradwire_server.command import gradwire_server
from gradwire_server.config import container_limits
from gradwire_server.config.settings import Settings, flag

NAMES = [field.name for field in fields(Settings)]
# Texts that are not the default, where a number that is larger by one would not do.
GIVEN = """
address=127.0.0.2:7 local_socket=socket shared_memory_users=1000,1001 open_inference=off
open_inference_memory=triton-* model=up=tf_resize:{"kind":"bilinear"} compile_cache=cache
tls_certificate=chain.pem tls_key=key.pem tls_client_ca=ca.pem tokens=tokens
anonymous_scopes=evaluate,inspect backend=cuda cuda_devices=0,2 log_format=json log_level=debug
max_rank=5 http_port=127.0.0.3:8 http_hosts=gradwire,status.example max_message_bytes=33554432
otlp_endpoint=https://me:private@collector:4318/p@th
"""


def other(name):
    default = getattr(Settings(), name)
    if isinstance(default, bool):
        return not default
    given = dict(each.split("=", 1) for each in GIVEN.split())
    return type(default)(given[name]) if name in given else default + 1


VALUES = {name: other(name) for name in NAMES}
# As variables have them.
TEXTS = {
    name: value if isinstance(value, str) else json.dumps(value) for name, value in VALUES.items()
}


def flags_of(name):
    """Return what sets a setting to its other value; a switch has no value."""
    if VALUES[name] is False:
        return [f"--no-{flag(name)[2:]}"]
    return [flag(name)] if VALUES[name] is True else [flag(name), TEXTS[name]]


def printed(*flags, env=None):
    return CliRunner(env=env).invoke(gradwire_server, ["--print-config", *flags])


def config(*flags, env=None):
    done = printed(*flags, env=env)
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def refused(*flags, env=None):
    """Return what the command says of flags that it does not take."""
    done = printed(*flags, env=env)
    assert (done.exit_code, done.stdout) == (2, "")
    return done.stderr


@pytest.mark.parametrize("given", ["flags", "variables", "file"])
def test_every_setting_is_a_flag_a_variable_and_a_key_of_a_file(tmp_path, given):
    told = config()
    assert list(told) == NAMES
    assert told == {name: getattr(Settings(), name) for name in NAMES}
    flags, env = [text for name in NAMES for text in flags_of(name)], {}
    if given == "variables":
        flags, env = [], {f"GRADWIRE_{name.upper()}": text for name, text in TEXTS.items()}
    if given == "file":
        file = tmp_path / "gradwire.toml"
        # JSON's texts, numbers and truth values are TOML's.
        file.write_text("".join(f"{name} = {json.dumps(VALUES[name])}\n" for name in NAMES))
        flags = ["--config", str(file)]
    masked = {"otlp_endpoint": "https://***@collector:4318/p@th"}
    assert config(*flags, env=env) == VALUES | masked


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "gradwire.toml"
    file.write_text("max_streams = 5\nmax_queue = 6\nmax_rank = 7\naccess_log = true\n")
    env = {"GRADWIRE_MAX_STREAMS": "4", "GRADWIRE_MAX_QUEUE": "5", "GRADWIRE_ACCESS_LOG": "false"}
    told = config("--max-streams", "3", "--config", str(file), env=env)
    names = ("max_streams", "max_queue", "max_rank", "access_log")
    assert [told[name] for name in names] == [3, 5, 7, False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_steams = 3", "max_steams is not a setting; did you mean max_streams?"),
        ("max-streams = 3", "max-streams is not a setting; did you mean max_streams?"),
        ("zzz = 3", "zzz is not a setting"),
        ("port = 5000", "port is not a setting; did you mean address?"),
        ("max_streams = true", "max_streams is True, true or false; an integer is needed"),
        ("insecure = 1", "insecure is 1, an integer; true or false is needed"),
        ("tokens = ['a']", "tokens is ['a'], an array; text in quotes is needed"),
        ("[server]\nmax_streams = 3", "server is not a setting"),
        ("max_streams = '3'", "max_streams is '3', text in quotes; an integer is needed"),
        ("max_streams = 3.0", "max_streams is 3.0, a number; an integer is needed"),
        ("grace_s = '3'", "grace_s is '3', text in quotes; a number is needed"),
        ("http_port = 9464", "http_port is 9464, an integer; text in quotes is needed"),
        ("grace_s = 2026-01-01", "a time; a number is needed"),
        ("backend = 'gpu'", "'gpu' is not one of"),
        ("max_rank = 9", "--max-rank is 9; at most 8 is possible"),
        ("max_streams", "which is not valid TOML: "),
        ("max_memory_bytes = 1", "--max-memory-bytes is 1; at least"),
        (None, "gradwire.toml: No such file or directory"),
    ],
)
def test_a_file_with_a_fault_is_refused_by_the_keys_name(tmp_path, text, words):
    file = tmp_path / "gradwire.toml"
    if text is not None:
        file.write_text(text)
    assert words in refused("--config", str(file))


# Flags and words of the message.
WRONG = [
    ("--max-streams 0", "--max-streams is 0; at least 1"),
    ("--max-streams many", "many"),
    ("--local-socket /no/socket", "there is no folder /no; make it"),
    ("--stall-timeout-s inf", "--stall-timeout-s is inf"),
    ("--max-elements 9223372036854775808", "--max-elements is 9223372036854775808"),
    ("--max-rank 9", "--max-rank is 9"),
    ("--workers -1", "--workers is -1; at least 0"),
    ("--backend abacus", "abacus"),
    ("--log-level loud", "loud"),
    ("--nonsense", "--nonsense"),
    ("--otlp-endpoint http://a:x", "--otlp-endpoint is http://a:x; a URL"),
    ("--max-work -1", "--max-work is -1; at least 1"),
    ("--max-work 9223372036854775808", "--max-work is 9223372036854775808"),
    ("--compute-threads -1", "--compute-threads is -1; at least 0"),
    ("--compute-threads 1025", "--compute-threads is 1025; at most 1024"),
    ("--address unix:/no/socket", "there is no folder /no; make it"),
    ("--local-socket /dev/" + 103 * "x", "a path of at most 107 bytes is possible"),
    (f"--address unix:{__file__}", "this is a file; give a path that is free"),
    ("--stall-timeout-s 0", "--stall-timeout-s is 0.0"),
    ("--stall-timeout-s nan", "--stall-timeout-s is nan"),
    ("--grace-s inf", "--grace-s is inf"),
    ("--max-message-bytes 2147483648", "--max-message-bytes is 2147483648"),
    ("--workers 50051", "--workers is 50051; at most 1024"),
    ("--backend cuda --address unix:/s", "--backend is cuda and --address unix:/s"),
    ("--workers 2 --address unix:/s", "--workers is 2 and --address is unix:/s"),
    ("--backend cuda --cuda-devices all", "--cuda-devices is all; numbers"),
    ("--backend cuda --cuda-devices 0,1,0", "--cuda-devices is 0,1,0, which names device 0 more"),
    ("--backend numpy_cpu --cuda-devices 0", "--cuda-devices is 0 and --backend numpy_cpu"),
    ("--cuda-devices 0", "--cuda-devices is 0 and --backend auto, which"),
    ("--anonymous-scopes all", "--anonymous-scopes is all: 'all' is not a scope"),
    ("--tls-certificate c.pem", "and --tls-key are"),
    ("--tls-key k.pem", "--tls-certificate and"),
    ("--tls-client-ca a.pem", "needs --tls-certificate"),
    ("--http-port 127.0.0.1", "--http-port is 127.0.0.1; PORT or"),
    ("--http-port 65536", "--http-port is 127.0.0.1:65536; PORT or"),
    ("--http-port 0.0.0.0:0 --insecure", "--http-port is 0.0.0.0:0, which is not loopback"),
    ("--http-port 0.0.0.0:0 --tokens tokens", "--http-port is 0.0.0.0:0, where tokens would"),
    ("--otlp-endpoint http://:4318", "--otlp-endpoint is http://:4318; a URL"),
    ("--otlp-endpoint 127.0.0.1:4318", "--otlp-endpoint is 127.0.0.1:4318; a URL"),
    ("--max-memory-bytes 10", "--max-memory-bytes is 10; at least 16777216"),
    ("--max-memory-bytes 16777216 --workers 3", "is 16777216; at least 50331648"),
    ("--max-message-bytes 1000", "--max-message-bytes is 1000"),
    ("--address 127.0.0.1", "--address is 127.0.0.1; HOST:PORT"),
    ("--address 127.0.0.1:70000", "--address is 127.0.0.1:70000; HOST:PORT"),
    ("--port 7 --address 127.0.0.1:1", "--port is 7 and --address 127.0.0.1:1; give one of them"),
]


@pytest.mark.parametrize(("flags", "words"), WRONG)
def test_a_setting_that_makes_no_sense_is_refused_by_name(flags, words):
    assert words in refused(*flags.split())


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50051", "example.org:50051"])
def test_an_address_beyond_this_machine_needs_tls_or_a_word(address):
    words = refused("--address", address)
    assert f"Error: --address is {address}" in words
    assert "insecure" in words
    assert "--tls-certificate" in words
    Settings(address=address, insecure=True)
    Settings(address=address, tls_certificate="chain.pem", tls_key="key.pem")
    for local in ("127.8.9.10:0", "[::1]:0", "localhost:0", "unix:/tmp/gradwire"):
        assert Settings(address=local).address == local
    assert config("--port", "7")["address"] == "127.0.0.1:7"


@pytest.fixture
def groups(tmp_path, monkeypatch, own, files):
    """Let a process have these control groups."""
    (tmp_path / "own").write_text(own)
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(container_limits, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(container_limits, "OWN", tmp_path / "own")


OF_VERSION_1 = "4:memory:/docker/abc\n2:cpuacct,cpu:/docker/abc\n0::/docker/abc\n"


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/\n", {"memory.max": "629145600\n"}, 629145600),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "7\n"}, 7),
        ("0::/a/b\n", {"a/b/memory.max": "5\n", "a/memory.max": "7\n"}, 5),
        ("0::/../x\n", {"memory.max": "7\n"}, 7),
        (OF_VERSION_1, {"memory/docker/abc/memory.limit_in_bytes": "9\n"}, 9),
        (OF_VERSION_1, {"memory/memory.limit_in_bytes": "9\n"}, 9),
        (OF_VERSION_1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("", {"memory.max": "7\n"}, None),
    ],
)
def test_the_limit_of_memory_is_the_least_of_all_groups(limit):
    least = container_limits.memory_bytes()
    assert least >= container_limits.UNLIMITED if limit is None else least == limit


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/a\n", {"a/cpu.max": "max 100000\n", "cpu.max": "100000 100000\n"}, 1),
        (OF_VERSION_1, {"cpu/cpu.cfs_quota_us": "70000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 2),
    ],
)
def test_a_quota_of_processor_time_is_rounded_up_to_processors(quota):
    cores = len(os.sched_getaffinity(0))
    given = container_limits.processors.__wrapped__()
    assert given == (cores if quota is None else min(cores, quota))


@pytest.mark.parametrize(
    ("limit", "workers", "room"),
    [(1 << 30, "1", 1 << 29), (5 << 29, "4", 5 << 27), (1 << 29, "1", 1 << 27)],
)
def test_limits_fit_the_container_unless_they_were_given(monkeypatch, limit, workers, room):
    monkeypatch.setattr(container_limits, "memory_bytes", lambda: limit)
    told = config("--workers", workers)
    assert told["max_memory_bytes"] == told["max_request_memory_bytes"] == room
    given = printed("--max-memory-bytes", str(limit))
    assert json.loads(given.stdout)["max_memory_bytes"] == limit
    words = f"Warning: --max-memory-bytes is {limit} and this container's limit {limit}; "
    assert words in given.stderr


def test_a_port_is_that_of_the_address_unless_that_is_another_one():
    assert config("--port", "7")["address"] == "127.0.0.1:7"
    given = {"GRADWIRE_ADDRESS": "127.0.0.2:50051"}
    assert config("--port", "0", env=given)["address"] == "127.0.0.2:0"
    both = refused("--port", "7", "--address", "127.0.0.1:1")
    assert "--port is 7 and --address 127.0.0.1:1; give one of them" in both
    words = "--port is 7 and --address unix:/tmp/gradwire; --port needs HOST:PORT there"
    assert words in refused("--port", "7", env={"GRADWIRE_ADDRESS": "unix:/tmp/gradwire"})


def test_a_variable_that_is_no_setting_is_told():
    done = printed(env={"GRADWIRE_MAX_STREAM": "3", "GRADWIRE_TARGET": "for.clients:1"})
    assert done.exit_code == 0
    assert "Warning: GRADWIRE_MAX_STREAM is not a setting" in done.stderr
    assert "did you mean GRADWIRE_MAX_STREAMS?" in done.stderr
    assert "GRADWIRE_TARGET" not in done.stderr


def test_help_names_every_flag_and_variable():
    done = CliRunner().invoke(gradwire_server, ["--help"])
    assert done.exit_code == 0
    words = set(re.split(r"[\s;\[\]]+", done.stdout))
    assert {*map(flag, NAMES), *(f"GRADWIRE_{name.upper()}" for name in NAMES)} <= words
    assert "SIGTERM" in done.stdout
