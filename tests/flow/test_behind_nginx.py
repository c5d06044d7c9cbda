"""A real nginx before the real server, configured as docs/deploy.md says and otherwise as it comes: it buffers."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from over_http import SPEECH, tone
from over_socket import PCM, STREAM, WAIT_S, SpeechClient
from websockets.asyncio.client import unix_connect

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"
# Whatever else stands in the text, the engine makes three chunks and then nothing: the utterance has no end.
ENDLESS = "{stall 3} abcdefghijklmnopqrstuvwxyz"
THREE_CHUNKS = 3 * 1920


def configuration(folder: Path, server_url: str) -> str:
    documented = re.search(r"```nginx\n(.*?)```", DEPLOY.read_text(), re.DOTALL)
    assert documented is not None
    site = documented[1].replace("listen 443 ssl;", f"listen unix:{folder}/nginx.sock;")
    site = site.replace("http://127.0.0.1:8000", server_url)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    return (
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{places}{site}}}"
    )


@pytest.fixture
def proxy(serve_process: Any, tmp_path: Path) -> Iterator[str]:
    """The path of nginx's listening socket."""
    server = serve_process("--model", "sine")
    config = tmp_path / "nginx.conf"
    config.write_text(configuration(tmp_path, server.url))
    command = ["nginx", "-p", str(tmp_path), "-c", str(config), "-e", "stderr"]
    path = f"{os.environ['PATH']}:/usr/sbin"
    nginx = subprocess.Popen(command, env={**os.environ, "PATH": path}, stderr=subprocess.PIPE, text=True)
    try:
        listening = tmp_path / "nginx.sock"
        deadline = time.monotonic() + WAIT_S
        while not listening.exists() and nginx.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert listening.exists(), nginx.communicate()[1]
        yield str(listening)
    finally:
        nginx.terminate()
        nginx.communicate()


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_speech_over_http_is_heard_while_it_is_made(proxy: str, stream_format: str) -> None:
    """S23."""
    asked = {"input": ENDLESS, "response_format": "pcm", "stream_format": stream_format}
    timeout = aiohttp.ClientTimeout(total=WAIT_S)
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(proxy), timeout=timeout) as http,
        http.post(f"http://127.0.0.1{SPEECH}", json=asked) as answer,
    ):
        assert answer.headers["Server"].startswith("nginx")
        if stream_format == "audio":
            assert await answer.content.readexactly(2 * THREE_CHUNKS) == tone(THREE_CHUNKS).tobytes()
        else:
            assert (await answer.content.readline()).startswith(b'data: {"type":"speech.audio.delta"')


async def test_speech_on_a_socket_is_heard_while_it_is_made_and_cancelled(proxy: str) -> None:
    """S23."""
    async with unix_connect(proxy, f"ws://127.0.0.1{STREAM}", compression=None, open_timeout=WAIT_S) as websocket:
        client = SpeechClient(websocket)
        await client.send("session.config", **PCM)
        await client.text(ENDLESS)
        await client.flush()
        heard = b""
        while len(heard) < 2 * THREE_CHUNKS:
            event = await client.next()
            heard += event if isinstance(event, bytes) else b""
        assert heard == tone(THREE_CHUNKS).tobytes()
        await client.send("input.cancel")
        assert (await client.until("session.done"))[-1]["status"] == "cancelled"
