"""Videos over a real socket from a real worker: what is asked is what the pictures show, and everything ends."""

from __future__ import annotations

import asyncio
import json
import random
import struct
import time
from collections.abc import Callable

import pytest
from over_socket import RawClient, Serving, parse_frames, serving, until
from over_video import SMALL, VIDEO, watching

from streamsynth.realtime.keys import DRAINING
from streamsynth.testing.faults import kill_worker
from streamsynth.testing.paint import COLOURS
from streamsynth.testing.paint_pipeline import CHUNK_FRAMES, PAINT
from streamsynth.testing.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
FAST = {"pacing": "none"}


@pytest.fixture(scope="module")
def paint_server(shared_serve_process: StartServer) -> str:
    return shared_serve_process("--model", "paint").url


async def test_a_video_has_exactly_the_pictures_that_were_asked_for() -> None:
    """V33, RV-12, RV-13."""
    async with serving(model="paint") as server, watching(server.url, num_frames=40, **FAST) as client:
        assert await client.closed() == (1000, "session.done")
        assert [painted.frame for painted in client.pictures()] == list(range(40))
        metadata = client.of("video.chunk_metadata")
        assert [each["kind"] for each in metadata] == ["init", *["media"] * 4, "trailer"]
        assert [each["num_frames"] for each in metadata] == [0, 9, 12, 12, 7, 0]
        assert client.of("session.done")[0]["frames"] == 40
        assert client.of("session.done")[0]["stopped"] is False
        config = client.of("video.start")[0]["config"]
        assert config["mime"] == f'video/mp4; codecs="{config["codec"]}"'
        await server.empty()


async def test_the_pictures_show_an_interaction_where_its_receipt_says() -> None:
    """V01, V08, RV-7: applied, started, active and completed agree with what is painted, and the clock goes on."""
    async with serving(model="paint") as server, watching(server.url, receipts=True) as client:
        await client.until_chunk(1)
        await client.steer("a", transition_chunks=2)
        await client.until(lambda message: message.get("completed_event_ids") == ["a"])
        await client.steer("b", "green", transition_chunks=0)
        await client.until(lambda message: message.get("completed_event_ids") == ["b"])
        await client.send("session.stop")
        assert (await client.closed())[0] == 1000
        pictures = client.pictures()
        assert [painted.frame for painted in pictures] == list(range(len(pictures)))
        for number, (event_id, chunks) in enumerate({"a": 2, "b": 1}.items()):
            (applied,) = [each for each in client.of("session.interaction.applied") if each["event_id"] == event_id]
            first = applied["pts"] // 1000
            assert pictures[first].chunk == applied["generation_chunk_index"] == pictures[first - 1].chunk + 1
            assert (pictures[first - 1].prompt_version, pictures[first].prompt_version) == (number, number + 1)
            active = [
                each["generation_chunk_index"]
                for each in client.of("video.chunk_metadata")
                if event_id in each["active_event_ids"]
            ]
            assert active == [applied["generation_chunk_index"] + k for k in range(chunks)]
        assert pictures[-1].epoch == 1  # The cut recached, the transition did not.
        assert all(abs(a - b) <= 6 for a, b in zip(pictures[-1].colour, COLOURS["green"], strict=True))


async def test_a_burst_of_updates_costs_one_preparation_and_all_are_accounted_for() -> None:
    """V47: each of a hundred is acknowledged; all but the last are superseded."""
    async with serving(model="paint") as server, watching(server.url, receipts=True) as client:
        await client.until_chunk(1)
        for number in range(100):
            await client.steer(f"e{number}", transition_chunks=0)
        await client.until(lambda message: "e99" in message.get("completed_event_ids", ()))
        assert len(client.of("session.interaction.queued")) == 100
        fates = client.of("session.interaction.applied") + client.of("session.interaction.superseded")
        assert len({each["event_id"] for each in fates}) == 100
        assert await server.counter("prepared") <= 4
        await client.send("session.stop")
        await client.closed()


async def test_what_the_model_cannot_serve_is_said_and_the_video_goes_on() -> None:
    """RV-10, RV-15."""
    async with serving(model="paint") as server, watching(server.url) as client:
        await client.until_chunk(0)
        await client.steer("a", "{refuse 0}")
        error = await client.until_type("error")
        assert (error["code"], error["event_id"], error["fatal"]) == ("interaction_failed", "a", False)
        await client.until_chunk(4)
        await client.send("session.stop")
        assert (await client.closed())[0] == 1000
        assert client.pictures()[-1].prompt_version == 0


async def test_stopping_supersedes_what_waits_and_sends_what_is_made() -> None:
    async with serving("brush.step_ms=100", model="paint") as server:
        async with watching(server.url, receipts=True) as client:
            await client.until_chunk(1)
            await client.steer("a", transition_chunks=50)
            await client.steer("b", mode="append")
            await client.until_type("session.interaction.applied")
            await client.send("session.stop")
            assert await client.closed() == (1000, "session.done")
        fates = [(each["event_id"], each["by"]) for each in client.of("session.interaction.superseded")]
        assert fates == [("a", None), ("b", None)]
        (done,) = client.of("session.done")
        assert done["frames"] == len(client.pictures()) and done["stopped"] is True


async def test_two_viewers_steer_their_own_pictures() -> None:
    """V22, V30."""
    async with serving(model="paint") as server:
        async with watching(server.url) as one, watching(server.url, prompt="green") as two:
            await asyncio.gather(one.until_chunk(1), two.until_chunk(1))
            await one.steer("a", "blue", transition_chunks=0)
            await asyncio.gather(one.until_chunk(4), two.until_chunk(4))
            for client in (one, two):
                await client.send("session.stop")
            await asyncio.gather(one.closed(), two.closed())
        assert one.pictures()[-1].prompt_version == 1
        assert {painted.prompt_version for painted in two.pictures()} == {0}
        await server.empty()


async def test_a_paced_video_keeps_its_lead_and_no_more() -> None:
    """V44: with a viewer who is there, chunks leave one lead ahead; never an underrun, never a rush."""
    async with serving(model="paint") as server, watching(server.url) as client:
        arrivals = []
        for number in range(5):
            message = await client.until_chunk(number)
            arrivals.append((time.monotonic(), message["pts"] / message["timescale"]))
        began = arrivals[0][0]
        for at, start_s in arrivals:
            early_s = start_s - (at - began)
            assert -0.05 < early_s <= CHUNK_FRAMES / PAINT.video.fps + 0.05
        await client.send("session.stop")
        await client.closed()


async def frozen(server: Serving) -> int:
    """Return when the worker has made no chunk for two heartbeats: the number that it had made."""
    chunks = -1
    while chunks != (chunks := await server.counter("chunks")):
        pass
    return chunks


RAW_CHUNK_BYTES = CHUNK_FRAMES * 3 * 128 * 128


async def test_a_viewer_that_stops_reading_stops_the_model_and_is_closed() -> None:
    """V43, V44: what was made is bounded, the end is typed, and the slot is free."""
    async with serving(model="paint", write_stall_s=3) as server:
        with await RawClient.open(server.url, path=VIDEO, receive_buffer=4096) as client:
            await client.send("session.start", prompt="red", format="raw", **SMALL, **FAST)
            async with asyncio.timeout(15):
                made = await frozen(server)
            assert 0 < made * RAW_CHUNK_BYTES <= 4 * RAW_CHUNK_BYTES
            async with watching(server.url, num_frames=9, **FAST) as other:
                assert (await other.closed())[0] == 1000
            await until(lambda: server.runtime.statistics().live_flows == 0)
            end = parse_frames(await client.read_all())
        assert end[-1][0] == 8 and end[-1][1][:2] == struct.pack("!H", 4002)
        assert await server.counter("live") == 0
        await server.empty()


async def test_a_slow_viewer_that_chose_it_misses_the_oldest_pictures_and_is_told() -> None:
    async with serving("brush.real_time=true", model="paint") as server:
        async with watching(server.url, started=False) as client:
            client.websocket.transport.pause_reading()
            await client.send(
                "session.start", prompt="red", format="raw", on_slow="drop_oldest", receipts=True, **SMALL
            )
            async with asyncio.timeout(15):
                while await server.counter("chunks") < 8:
                    pass
            client.websocket.transport.resume_reading()
            dropped = await client.until_type("video.dropped")
            await client.send("session.stop")
            await client.closed()
        assert dropped["count"] > 0
        missed = sum(each["count"] for each in client.of("video.dropped"))
        sent = sum(each["num_frames"] for each in client.of("video.chunk_metadata"))
        assert missed + sent == client.of("session.done")[0]["frames"]


async def test_a_killed_worker_ends_its_videos_at_once_and_the_next_one_works() -> None:
    """V25, V31."""
    async with serving(model="paint") as server, watching(server.url) as client:
        await client.until_chunk(1)
        pid = server.runtime.statistics().stages["paint.brush"].pid
        assert pid is not None
        killed_s = await asyncio.to_thread(kill_worker, pid)
        code, reason = await client.closed()
        assert time.monotonic() - killed_s < 1.0
        assert code == 1011 and reason.startswith("worker_died")
        (error,) = client.of("error")
        assert (error["code"], error["fatal"]) == ("worker_died", True)
        await until(lambda: server.runtime.dead_stages() == {})
        async with watching(server.url, num_frames=9, **FAST) as again:
            assert (await again.closed())[0] == 1000
        await server.empty()


@pytest.mark.parametrize("at_chunk", [0, 2])
def test_a_model_that_fails_says_so(at_chunk: int) -> None:
    """V31, V42: a typed error and never a clean end."""

    async def run() -> None:
        async with serving(model="paint") as server:
            async with watching(server.url, prompt=f"{{fail {at_chunk}}}", **FAST) as client:
                assert (await client.closed())[0] == 1011
                assert client.of("error")[0]["code"] == "engine_failed"
                assert client.of("session.done") == []
            await server.empty()

    asyncio.run(run())


async def test_draining_lets_the_video_end_in_order() -> None:
    async with serving(model="paint") as server, watching(server.url) as client:
        await client.until_chunk(1)
        server.app[DRAINING].begin()
        code, reason = await client.closed()
        assert (code, reason) == (1001, "the server is shutting down")
        assert client.of("session.done")[0]["stopped"] is True
        assert [painted.frame for painted in client.pictures()] == list(range(len(client.pictures())))
        await server.empty()


async def test_a_viewer_that_leaves_at_any_moment_leaves_nothing_behind() -> None:
    """V21, V27, V28, V32: fifty comings and goings on one server."""
    chance = random.Random(4)
    async with serving("brush.step_ms=5", model="paint") as server:

        async def come_and_go() -> None:
            with await RawClient.open(server.url, path=VIDEO) as client:
                await client.send("session.start", prompt="red", receipts=True, **SMALL, **FAST)
                await asyncio.sleep(chance.uniform(0, 0.1))
                await client.send("session.interaction", interaction={"event": {"prompt": "blue"}})
                client.vanish()

        for _ in range(10):
            await asyncio.gather(*(come_and_go() for _ in range(5)))
        await server.empty()
        assert await server.counter("live") == 0
        assert await server.counter("memory_in_use") == 0


async def test_garbage_is_refused_by_name_and_hurts_no_running_video() -> None:
    chance = random.Random(2)
    words: list[object] = [None, True, -1, 1e9, "", "x" * 300, [], {}, {"prompt": 3}, "session.stop", "keep"]

    def garbage() -> str:
        kind = chance.choice(["session.interaction", "session.start", "playback.position", "session.pong", "", "{"])
        names = ["interaction", "pts", "event", "event_id", "mode", "kv", "transition_chunks", "fps"]
        inner = {name: chance.choice(words) for name in chance.sample(names, 3)}
        return json.dumps({"type": kind, **inner, "interaction": chance.choice([inner, *words])})

    async with serving(model="paint") as server, watching(server.url) as client:
        await client.until_chunk(0)
        for _ in range(200):
            await client.websocket.send(garbage())
        await client.websocket.send("[]")
        await client.until_chunk(3)
        assert len(client.of("error")) == 201
        assert not any(error["fatal"] for error in client.of("error"))
        await client.send("session.stop")
        assert (await client.closed())[0] == 1000


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"width": 100}, "invalid_value", "width"),
        ({"fps": 24}, "invalid_value", "fps"),
        ({"num_frames": 0}, "invalid_value", "num_frames"),
        ({"prompt": " "}, "invalid_value", "prompt"),
        ({"prompt": None}, "missing_field", "prompt"),
        ({"format": "webm"}, "invalid_value", "format"),
        ({"negative_prompt": "dull"}, "unsupported_field", "negative_prompt"),
        ({"image_reference": "data:image/png;base64,AA=="}, "unsupported_field", "image_reference"),
        ({"surprise": 1}, "unknown_field", "surprise"),
        ({"model": "sine"}, "model_not_found", "model"),
        ({"width": 832, "height": 480, "format": "raw"}, "invalid_value", "format"),
    ],
)
def test_a_start_that_cannot_be_is_refused_by_name_and_can_be_repeated(
    fields: dict[str, object], code: str, param: str, paint_server: str
) -> None:
    async def run() -> None:
        async with watching(paint_server, **fields) as client:
            error = await client.until_type("error")
            assert (error["code"], error["param"], error["fatal"]) == (code, param, False)
            await client.send("session.start", prompt="red", num_frames=1, **SMALL)
            assert (await client.closed())[0] == 1000

    asyncio.run(run())


@pytest.mark.parametrize("on_slow", ["wait", "drop_oldest"])
def test_a_prompt_that_the_model_refuses_is_named_and_another_start_may_follow(on_slow: str, paint_server: str) -> None:
    async def run() -> None:
        async with watching(paint_server, prompt="{refuse 0}", on_slow=on_slow) as client:
            for _ in range(2):
                error = await client.until_type("error")
                assert (error["code"], error["param"], error["fatal"]) == ("invalid_value", "prompt", False)
                await client.send("session.start", prompt="{refuse 0}", on_slow=on_slow, **SMALL)
            await client.until_type("error")
            await client.send("session.start", prompt="red", num_frames=9, on_slow=on_slow, **SMALL)
            assert (await client.closed())[0] == 1000
            assert len(client.of("error")) == 3
            assert [picture.frame for picture in client.pictures()] == list(range(9))

    asyncio.run(run())


async def test_a_start_that_fails_otherwise_ends_the_session() -> None:
    async with serving(model="paint") as server, watching(server.url, prompt="{fail 0}") as client:
        error = await client.until_type("error")
        assert (error["code"], error["fatal"]) == ("engine_failed", True)
        assert (await client.closed())[0] == 1011
        await server.empty()


async def test_binary_and_oversized_messages_end_the_session() -> None:
    async with serving(model="paint") as server:
        async with watching(server.url) as client:
            await client.websocket.send(b"picture")
            assert (await client.closed())[0] == 1003
        async with watching(server.url) as client:
            await client.steer("a", "x" * (200 << 10))
            assert (await client.closed())[0] == 1009
        await server.empty()
