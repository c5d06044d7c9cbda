"""Who is let in: keys in either place, local names and pages without keys; no key is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.realtime.auth import LOCAL, Auth, Caller, offered_protocols
from streamsynth.realtime.settings import ServerSettings, is_loopback

KEYED = Auth(ServerSettings(host="0.0.0.0", api_keys=("first-KEY_1", "second-KEY_2")))
OPEN = Auth(ServerSettings(cors_origins=("https://friend.example",)))


def headers(**fields: str) -> CIMultiDict[str]:
    return CIMultiDict({name.replace("_", "-"): value for name, value in fields.items()})


def refused(auth: Auth, given: CIMultiDict[str], *, websocket: bool = False) -> ErrorCode:
    with pytest.raises(StreamSynthError) as caught:
        auth.check_source(given)
        auth.identify(given, websocket=websocket)
    assert "KEY_" not in caught.value.message
    return caught.value.code


def test_a_bearer_key_names_its_caller_by_position() -> None:
    assert KEYED.identify(headers(Authorization="Bearer second-KEY_2")) == Caller("key-2")
    assert KEYED.identify(headers(Authorization="bearer first-KEY_1")) == Caller("key-1")


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Bearer nobody", "Basic first-KEY_1", "first-KEY_1", "Bearer é"]
)
def test_anything_else_is_unauthorized(value: str) -> None:
    assert refused(KEYED, headers(Authorization=value)) is ErrorCode.UNAUTHORIZED


@pytest.mark.parametrize(
    "offered",
    [
        "streamsynth, bearer.first-KEY_1",
        "bearer.first-KEY_1,streamsynth",
        "realtime, openai-insecure-api-key.first-KEY_1",
    ],
)
def test_a_browser_sends_the_key_as_a_subprotocol(offered: str) -> None:
    assert KEYED.identify(headers(Sec_WebSocket_Protocol=offered), websocket=True) == Caller("key-1")


@pytest.mark.parametrize("offered", ["bearer.first-KEY_1", "realtime, bearer.first-KEY_1", "streamsynth", ""])
def test_a_key_without_its_subprotocol_does_not_count(offered: str) -> None:
    assert refused(KEYED, headers(Sec_WebSocket_Protocol=offered), websocket=True) is ErrorCode.UNAUTHORIZED


def test_a_subprotocol_key_counts_on_websockets_only() -> None:
    given = headers(Sec_WebSocket_Protocol="streamsynth, bearer.first-KEY_1")
    assert refused(KEYED, given) is ErrorCode.UNAUTHORIZED


def test_subprotocols_are_read_from_several_lines() -> None:
    given = CIMultiDict([("Sec-WebSocket-Protocol", "a , b"), ("Sec-WebSocket-Protocol", "c")])
    assert offered_protocols(given) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "127.8.8.8", "[::1]:8000", "LOCALHOST"]
)
def test_without_keys_local_names_are_answered(host: str) -> None:
    OPEN.check_source(headers(Host=host))
    assert OPEN.identify(headers(Host=host)) == LOCAL


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[", "10.0.0.1:8000", "localhost.evil"])
def test_without_keys_foreign_names_are_refused(host: str) -> None:
    assert refused(OPEN, headers(Host=host)) is ErrorCode.FORBIDDEN


@pytest.mark.parametrize("origin", ["http://localhost:8000", "https://localhost:8000", "https://friend.example"])
def test_without_keys_the_own_page_and_named_origins_are_answered(origin: str) -> None:
    OPEN.check_source(headers(Host="localhost:8000", Origin=origin))


@pytest.mark.parametrize(
    "origin", ["http://localhost:9000", "https://evil.example", "null", "file://localhost:8000", "http://[", ""]
)
def test_without_keys_foreign_pages_are_refused(origin: str) -> None:
    assert refused(OPEN, headers(Host="localhost:8000", Origin=origin)) is ErrorCode.FORBIDDEN


def test_with_keys_the_key_decides_and_not_the_name() -> None:
    KEYED.check_source(headers(Host="speech.example", Origin="https://anywhere.example"))


def test_a_wildcard_allows_every_origin_but_an_opaque_one() -> None:
    auth = Auth(ServerSettings(api_keys=("k",), cors_origins=("*",)))
    assert auth.allows_origin("https://anywhere.example")
    assert not auth.allows_origin("null")
    assert not KEYED.allows_origin("https://anywhere.example")


@pytest.mark.parametrize(
    ("param", "settings"),
    [
        ("host", {"host": "0.0.0.0"}),
        ("host", {"host": "speech.example"}),
        ("api_keys", {"api_keys": ("pad==",)}),
        ("api_keys", {"api_keys": ("",)}),
        ("port", {"port": 70_000}),
        ("cors_origin", {"cors_origins": ("*",)}),
        ("cors_origin", {"cors_origins": ("https://a.example/path",)}),
        ("tls_key", {"tls_cert": Path("cert.pem")}),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(param: str, settings: dict[str, object]) -> None:
    with pytest.raises(StreamSynthError) as caught:
        ServerSettings(**settings)  # type: ignore[arg-type]  # one field at a time
    assert caught.value.param == param
    assert "pad==" not in caught.value.message


def test_keys_do_not_show_in_what_is_printed() -> None:
    assert "secret" not in repr(ServerSettings(api_keys=("secret",)))


def test_loopback_is_every_address_of_this_machine_only() -> None:
    assert [is_loopback(name) for name in ("127.0.0.1", "::1", "[::1]", "localhost")] == [True] * 4
    assert [is_loopback(name) for name in ("0.0.0.0", "::", "192.168.0.1", "localhost.example", "")] == [False] * 5


@given(authorization=st.text(), protocols=st.text(), host=st.text(), origin=st.text())
def test_any_headers_give_a_caller_or_a_typed_error(authorization: str, protocols: str, host: str, origin: str) -> None:
    given = headers(Authorization=authorization, Sec_WebSocket_Protocol=protocols, Host=host, Origin=origin)
    for auth in (KEYED, OPEN):
        try:
            auth.check_source(given)
            auth.identify(given, websocket=True)
        except StreamSynthError as error:
            assert error.code in (ErrorCode.UNAUTHORIZED, ErrorCode.FORBIDDEN)
