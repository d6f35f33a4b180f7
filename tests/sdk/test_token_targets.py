"""To which servers the SDK shows a token in plain text: those of this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from gradwire import (
    AsyncClient,
    Client,
    InvalidRequestError,
)
from gradwire._core.options import is_local

LOCAL = (
    "127.0.0.1:50051",
    "127.9.9.9:1",
    "localhost:50051",
    "[::1]:50051",
    "unix:/run/gradwire",
    "unix:///run/gradwire",
    "unix-abstract:gradwire",
    "dns:///localhost:50051",
    "ipv4:127.0.0.1:1,127.0.0.2:1",
    "ipv6:[::1]:1",
)
DISTANT = (
    "192.0.2.1:50051",
    "gradwire.example:50051",
    "localhost.example:50051",
    "127.0.0.1.example:50051",
    "[2001:db8::1]:50051",
    "dns:///gradwire.example:50051",
    "dns://127.0.0.1/gradwire.example:50051",
    "ipv4:127.0.0.1:1,192.0.2.1:1",
    "0.0.0.0:50051",
    "xds:///localhost",
)


@pytest.fixture(autouse=True)
def no_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRADWIRE_TOKEN", "GRADWIRE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("target", LOCAL)
def test_to_this_machine_a_token_goes_in_plain_text(target: str) -> None:
    assert is_local(target)
    Client(target, token="x").close()  # noqa: S106


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("target", DISTANT)
def test_to_no_other_machine_does_a_token_go_in_plain_text(
    target: str,
    kind: type[Client | AsyncClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not is_local(target)
    kind(target)
    options: list[dict[str, Any]] = [{"token": "hush"}, {"token_file": str(tmp_path / "none")}]
    for given in options:
        with pytest.raises(InvalidRequestError, match="plain text") as caught:
            kind(["127.0.0.1:1", target], **given)
        assert "hush" not in str(caught.value)
        assert caught.value.field == next(iter(given))
    kind(target, token="hush", credentials=grpc.ssl_channel_credentials())  # noqa: S106
    monkeypatch.setenv("GRADWIRE_TOKEN", "hush")
    with pytest.raises(InvalidRequestError, match=r"^GRADWIRE_TOKEN: "):
        kind(target)
