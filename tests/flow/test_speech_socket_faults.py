"""The socket's own code, cancelled or broken at each of its waits: one session ends, and nothing of it is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from time import monotonic
from typing import Any

import pytest
import pytest_asyncio
from over_socket import PCM, STREAM, Serving, SpeechClient, kinds, last, serving, speaking, until
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from streamsynth.realtime import speech_socket as shell
from streamsynth.realtime.keys import ADMISSION
from streamsynth.realtime.speaker import Speaker
from streamsynth.realtime.speech_audio import UtteranceAudio
from streamsynth.realtime.speech_messages import InputCancel
from streamsynth.realtime.speech_session import SpeechSession

WHOLE = ["audio.start", "audio", "audio.done", "session.done"]
WAITS = 60

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Serving]:
    async with serving(close_wait_s=0.2) as started:
        yield started
        assert await started.counter("live") == 0


@pytest_asyncio.fixture(loop_scope="module")
async def server(shared: Serving) -> AsyncIterator[Serving]:
    yield shared
    await shared.empty()
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith(("writer", "speaker"))])


async def a_session(server: Serving) -> None:
    """A bit of everything; whatever the server does to it is fine."""
    try:
        async with speaking(server.url, **PCM, split_granularity="sentence") as client:
            await client.text("One sentence. ")
            await client.text("And another")
            await client.flush()
            await client.until("audio")
            await client.send("input.cancel")
            await client.speak("{delay 1}A second utterance.")
            await client.text("A third. And")
            await client.until("audio")
            await client.send("session.close")
            await client.closed()
    except (OSError, WebSocketException, EOFError):
        pass


class AtWait:
    """Awaits a coroutine and calls back at its n-th wait, from 0."""

    def __init__(self, wait: int, coroutine: Coroutine[Any, Any, None], callback: Callable[[], None]) -> None:
        self._left = wait
        self._coroutine = coroutine
        self._callback = callback

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._coroutine.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                waited = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration:
                return
            if self._left == 0:
                self._callback()
            self._left -= 1
            thrown = None
            try:
                yield waited
            except BaseException as error:
                thrown = error


async def test_the_connection_is_cancelled_at_each_of_its_waits(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As aiohttp does when a connection is lost or the server gives up: at each message, and while it winds up."""
    serve = shell.SpeechConnection.serve
    reached = 0

    def cancel() -> None:
        nonlocal reached
        reached += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def struck(self: shell.SpeechConnection) -> None:
        await AtWait(wait, serve(self), cancel)

    monkeypatch.setattr(shell.SpeechConnection, "serve", struck)
    for wait in range(WAITS):
        await a_session(server)
        await server.empty()
        if reached <= wait:
            break
    assert reached >= 12
    monkeypatch.undo()
    async with speaking(server.url, **PCM) as client:
        assert kinds(await client.speak("all is well")) == WHOLE


@pytest.mark.parametrize("name", ["pcm", "mp3"])
async def test_an_utterance_is_cancelled_at_each_wait_of_its_speaker(
    server: Serving, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """For its turn, for room, for a chunk, for the encoder's thread, for the outcome."""
    make = Speaker._make
    reached = 0

    def cancel(speaker: Speaker) -> None:
        nonlocal reached
        reached += 1
        speaker._stand.session.receive(InputCancel(0), monotonic())
        speaker._stand.settle()

    async def struck(self: Speaker) -> None:
        if self._index == 0:
            await AtWait(wait, make(self), partial(cancel, self))
        else:
            await make(self)

    monkeypatch.setattr(Speaker, "_make", struck)
    for wait in range(WAITS):
        async with speaking(server.url, response_format=name, stream_audio=True) as client:
            events = await client.speak("Some words to say.")
            assert last(events)["status"] in ("cancelled", "completed")
            if last(events)["status"] == "cancelled":
                assert kinds(events)[-2:] == ["input.cancelled", "session.done"]
            assert kinds(await client.speak("And on.")) == WHOLE
        await server.empty()
        if reached <= wait:
            break
    # What is there already is not waited for: how many waits there are is a matter of who is faster.
    assert reached >= 3


@pytest.mark.parametrize("broken", ["add", "finish"])
async def test_a_fault_of_ours_in_an_utterance_fails_that_utterance(
    server: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """Rule 1: exactly one terminal event, whatever fails; the log has the traceback, the client does not."""

    async def fault(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    async with speaking(server.url, **PCM) as client:
        with monkeypatch.context() as patch:
            patch.setattr(UtteranceAudio, broken, fault)
            events = await client.speak("broken")
        error = next(event for event in events if isinstance(event, dict) and event["type"] == "error")
        assert (error["code"], error["fatal"]) == ("internal_error", False)
        assert "a fault of ours" not in error["message"]
        assert last(events)["status"] == "failed"
        assert kinds(await client.speak("whole")) == WHOLE
    assert "a fault of ours" in caplog.text


async def test_a_fault_of_ours_in_a_session_ends_that_session_with_1011(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    async with speaking(server.url, **PCM) as client, speaking(server.url, **PCM) as other:
        assert kinds(await client.speak("fine so far")) == WHOLE
        with monkeypatch.context() as patch:
            patch.setattr(SpeechSession, "_append", fault)
            await client.text("broken")
            events, code, _ = await client.closed()
        assert (last(events)["code"], last(events)["fatal"], code) == ("internal_error", True, 1011)
        assert kinds(await other.speak("not touched")) == WHOLE


async def test_an_overloaded_server_refuses_the_utterance_and_not_the_session() -> None:
    """S54, S39"""
    async with serving("tone.max_num_seqs=1", "tone.max_queued=1", running_utterances=1, queued_utterances=1) as server:
        sessions = [speaking(server.url, **PCM) for _ in range(3)]
        async with sessions[0] as first, sessions[1] as second, sessions[2] as third:
            await first.text("{delay 20}" + "x" * 40)
            await first.flush()
            await first.until("audio")
            await second.text("waits")
            await second.flush()
            await until(lambda: server.app[ADMISSION].queued == 1)
            events = await third.speak("refused")
            assert kinds(events) == ["error", "session.done"]
            error = events[0]
            assert isinstance(error, dict)
            assert (error["code"], error["retry_after_ms"] > 0) == ("overloaded", True)
            assert last(events)["status"] == "failed"
            assert kinds(await second.until("session.done")) == WHOLE
            assert kinds(await third.speak("served now")) == WHOLE
        await server.empty()


async def test_a_session_beyond_the_limit_is_told_where_it_can_be() -> None:
    async with serving(sessions=1) as server:
        async with speaking(server.url, **PCM) as client:
            with pytest.raises(InvalidStatus) as refused:
                async with speaking(server.url):
                    pass
            assert refused.value.response.status_code == 429
            address = server.url.replace("http", "ws", 1) + STREAM
            async with connect(address, subprotocols=[Subprotocol("streamsynth")]) as websocket:
                told = SpeechClient(websocket)
                events, code, _ = await told.closed()
                assert websocket.subprotocol == "streamsynth"
            assert (last(events)["code"], last(events)["fatal"], code) == ("overloaded", True, 1013)
            assert kinds(await client.speak("still here")) == WHOLE
        await server.empty()
