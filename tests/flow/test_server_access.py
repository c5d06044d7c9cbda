"""Who gets in, from outside: keys, open routes, names and origins, CORS, TLS, and refusals that a browser can read."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from over_http import SPEECH, speak

from streamsynth.testing.server_process import ServerProcess

KEY = "a-Key_of-the-test"
STREAM = "/v1/audio/speech/stream"
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def keyed(shared_serve_process: Any) -> ServerProcess:
    started: ServerProcess = shared_serve_process(
        *("--model", "sine", "--host", "0.0.0.0", "--cors-origin", "https://friend.example"),
        env={"STREAMSYNTH_API_KEYS": f"other,{KEY}"},
    )
    return started


@pytest.fixture(scope="module")
def keyless(shared_serve_process: Any) -> ServerProcess:
    started: ServerProcess = shared_serve_process("--model", "sine")
    return started


@pytest_asyncio.fixture
async def http(keyed: ServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(keyed.url.replace("0.0.0.0", "127.0.0.1")) as session:
        yield session


@pytest_asyncio.fixture
async def local(keyless: ServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(keyless.url) as session:
        yield session


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/index.html"])
async def test_liveness_readiness_and_the_page_are_open(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("path", ["/metrics", "/v1/limits", "/v1/models", "/v1/audio/voices", "/nothing", STREAM])
async def test_everything_else_needs_a_key(http: aiohttp.ClientSession, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}):
        async with http.get(path, headers=headers) as answer:
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert (await answer.json())["error"]["code"] == "unauthorized"
    async with http.get(path, headers=BEARER) as answer:
        assert answer.status in ((404,) if path == "/nothing" else (200, 400))


async def test_a_key_lets_speech_through(http: aiohttp.ClientSession) -> None:
    async with http.post(SPEECH, json={"input": "a"}) as answer:
        assert answer.status == 401
    async with http.post(SPEECH, json={"input": "a"}, headers=BEARER) as answer:
        assert answer.status == 200


async def test_a_browser_opens_the_socket_with_its_key_as_subprotocol(http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(STREAM, protocols=("streamsynth", f"bearer.{KEY}")) as socket:
        assert socket.protocol == "streamsynth"


async def test_a_refused_handshake_is_an_http_status(http: aiohttp.ClientSession) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await http.ws_connect(STREAM)
    assert caught.value.status == 401


async def test_a_client_of_our_subprotocol_is_told_on_the_socket(http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(STREAM, protocols=("streamsynth", "bearer.wrong")) as socket:
        error = json.loads((await socket.receive()).data)
        assert (error["type"], error["code"], error["fatal"]) == ("error", "unauthorized", True)
        closed = await socket.receive()
        assert (closed.type, closed.data, closed.extra) == (aiohttp.WSMsgType.CLOSE, 1008, "unauthorized")


async def test_the_realtime_socket_is_not_served_yet(http: aiohttp.ClientSession) -> None:
    for protocols in (("realtime", f"openai-insecure-api-key.{KEY}"), ()):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await http.ws_connect("/v1/realtime", protocols=protocols, headers={} if protocols else BEARER)
        assert caught.value.status == 404


async def test_named_origins_may_read_answers_and_others_may_not(http: aiohttp.ClientSession) -> None:
    for origin, allowed in (("https://friend.example", "https://friend.example"), ("https://evil.example", None)):
        for headers in ({**BEARER, "Origin": origin}, {"Origin": origin}):
            async with http.post(SPEECH, json={"input": "a"}, headers=headers) as answer:
                assert answer.headers.get("Access-Control-Allow-Origin") == allowed
                assert ("X-Ignored-Fields" in answer.headers.get("Access-Control-Expose-Headers", "")) == bool(allowed)
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        async with http.options(SPEECH, headers=asked) as answer:
            assert answer.status == (204 if allowed else 403)
            assert ("Authorization" in answer.headers.get("Access-Control-Allow-Headers", "")) == bool(allowed)
        sdk = {**asked, "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}
        async with http.options(SPEECH, headers=sdk) as answer:
            assert ("x-stainless-os" in answer.headers.get("Access-Control-Allow-Headers", "")) == bool(allowed)


async def test_without_keys_foreign_names_and_pages_are_refused(local: aiohttp.ClientSession) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        async with local.post(SPEECH, json={"input": "a"}, headers=headers) as answer:
            assert answer.status == 403
            assert (await answer.json())["error"]["code"] == "forbidden"
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await local.ws_connect(STREAM, headers=headers)
        assert caught.value.status == 403


async def test_without_keys_the_own_page_is_answered(local: aiohttp.ClientSession, keyless: ServerProcess) -> None:
    async with local.post(SPEECH, json={"input": "a"}, headers={"Origin": keyless.url}) as answer:
        assert answer.status == 200


async def test_errors_of_paths_and_methods_have_the_same_shape(local: aiohttp.ClientSession) -> None:
    async with local.get("/v1/nothing") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")
    async with local.get(SPEECH) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        assert (await answer.json())["error"]["code"] == "method_not_allowed"
    async with local.get(STREAM) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["type"] == "invalid_request_error"


async def test_the_page_is_typed_guarded_and_revalidated(local: aiohttp.ClientSession) -> None:
    async with local.get("/") as answer:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        etag = answer.headers["ETag"]
    async with local.get("/", headers={"If-None-Match": etag}) as answer:
        assert (answer.status, await answer.read()) == (304, b"")
    async with local.get("/player.js") as answer:
        assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
    for path in ("/__init__.py", "/../pyproject.toml", "/%2e%2e/pyproject.toml", "/package.json"):
        async with local.get(path) as answer:
            assert answer.status == 404


async def test_what_the_server_has_is_listed(local: aiohttp.ClientSession) -> None:
    async with local.get("/v1/audio/voices") as answer:
        voices = {voice["id"]: voice for voice in (await answer.json())["voices"]}
    assert voices["sine"] == {"id": "sine", "name": "Sine", "languages": ["en"]}
    assert [voice["alias_of"] for name, voice in voices.items() if name != "sine"] == ["sine"] * 14
    async with local.get("/v1/limits") as answer:
        limits = await answer.json()
    assert limits["limits"]["text_characters"] == 65_536
    assert limits["models"]["sine"]["speed"] == [0.25, 4.0]
    assert limits["formats"]["opus"] == {"one_of": [8000, 12_000, 16_000, 24_000, 48_000]}
    async with local.get("/v1/audio/voices?voice=a") as answer:
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "voice")


async def test_keys_never_reach_the_log(http: aiohttp.ClientSession, keyed: ServerProcess) -> None:
    for protocols in (
        ("streamsynth", f"bearer.{KEY}"),
        (f"bearer.{KEY}",),
        ("realtime", f"openai-insecure-api-key.{KEY}"),
    ):
        try:
            async with http.ws_connect(STREAM, protocols=protocols):
                pass
        except aiohttp.WSServerHandshakeError:
            pass
    assert KEY not in keyed.log()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")
    named = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(cert))
    subprocess.run(["openssl", "req", *made, *named, *files], check=True, capture_output=True)
    return cert, key


async def test_tls_serves_https(serve_process: Any, certificate: tuple[Path, Path]) -> None:
    """A page plays sound in a secure context only."""
    cert, key = certificate
    server = serve_process("--model", "sine", "--tls-cert", str(cert), "--tls-key", str(key))
    assert server.url.startswith("https://")
    trusted = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(cert)))
    async with aiohttp.ClientSession(server.url, connector=trusted) as secure:
        assert (await speak(secure, input="abc", response_format="pcm"))[0] == 200
        asked = {"input": "{fail 8} a much longer text", "response_format": "pcm"}
        async with secure.post(SPEECH, json=asked) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
