"""`POST /v1/videos/sync` and `/v1/images/generations`: what is waited for on the connection, and ends with it."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import signal
from typing import Any

import aiohttp
import av
import numpy as np
import pytest
from over_http import ended, metrics, quiet, until_metrics
from over_videos import VIDEOS, frames, refusal

from streamsynth.testing.paint import COLOURS, read_picture
from streamsynth.testing.paint_pipeline import FIRST_CHUNK_FRAMES
from streamsynth.testing.server_process import ServerProcess

SYNC, IMAGES = f"{VIDEOS}/sync", "/v1/images/generations"


@pytest.fixture(scope="module")
def server(shared_serve_process: Any) -> ServerProcess:
    return shared_serve_process("--model", "paint")


def asked(prompt: str = "red", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "size": "128x128", **fields}


async def test_a_clip_comes_on_the_connection_while_it_is_made(server: ServerProcess) -> None:
    """The engine makes nothing after its third chunk: what comes before that is not held back."""
    async with aiohttp.ClientSession(server.url) as http:
        async with http.post(SYNC, json=asked(seconds=2, seed=3)) as answer:
            assert (answer.status, answer.content_type) == (200, "video/mp4")
            assert answer.headers["X-Seed"] == "3"
            assert frames(await answer.read()) == list(range(32))
        async with http.post(SYNC, json=asked("{stall 3}")) as answer:
            assert len(await answer.content.readexactly(1000)) == 1000
        async with http.get(VIDEOS) as answer:
            assert (await answer.json())["data"] == [], "nothing of it is kept"
        await until_metrics(http, quiet)


async def test_what_fails_before_the_first_picture_is_a_plain_error(server: ServerProcess) -> None:
    async with aiohttp.ClientSession(server.url) as http:
        assert await refusal(http, "POST", SYNC, json=asked("{refuse 0}")) == (400, "invalid_value", "prompt")
        assert await refusal(http, "POST", SYNC, json=asked("{fail 0}")) == (500, "engine_failed", None)
        assert await refusal(http, "POST", SYNC, json=asked(size="2x2")) == (400, "invalid_value", "size")


async def test_what_fails_later_never_ends_cleanly(server: ServerProcess) -> None:
    async with aiohttp.ClientSession(server.url) as http, http.post(SYNC, json=asked("{fail 3}")) as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_client_that_leaves_ends_the_work(server: ServerProcess) -> None:
    async with aiohttp.ClientSession(server.url) as http:
        async with http.post(SYNC, json=asked(num_frames=1_000_000)) as answer:
            await answer.content.readexactly(100)
            assert (await metrics(http))["streamsynth_running"] == 1
            answer.close()
        await until_metrics(http, quiet)


async def test_images_are_exact_and_each_has_its_own_seed(server: ServerProcess) -> None:
    async with aiohttp.ClientSession(server.url) as http:

        async def images(**fields: Any) -> list[np.ndarray]:
            async with http.post(IMAGES, json=asked("a green field", **fields)) as answer:
                assert answer.status == 200, await answer.text()
                body = await answer.json()
            assert (body["size"], body["output_format"]) == ("128x128", fields.get("output_format", "png"))
            return [decoded(base64.b64decode(each["b64_json"])) for each in body["data"]]

        three = await images(n=3, seed=11)
        singles = [(await images(seed=seed))[0] for seed in (11, 12, 13)]
        assert all(np.array_equal(a, b) for a, b in zip(three, singles, strict=True))
        assert not np.array_equal(three[0], three[1])
        assert read_picture(three[0]).colour == COLOURS["green"]
        assert read_picture(three[0]).frame == FIRST_CHUNK_FRAMES - 1
        (jpeg,) = await images(seed=11, output_format="jpeg", response_format="b64_json")
        assert np.abs(jpeg.astype(int) - three[0]).mean() < 4


def decoded(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"n": 0}, (400, "invalid_value", "n")),
        ({"n": 11}, (400, "invalid_value", "n")),
        ({"n": 2, "seed": 2**63 - 1}, (400, "invalid_value", "seed")),
        ({"n": 3, "seed": str(2**63 - 2)}, (400, "invalid_value", "seed")),
        ({"prompt": ""}, (400, "invalid_value", "prompt")),
        ({"output_format": "webp"}, (400, "invalid_value", "output_format")),
        ({"response_format": "url"}, (400, "invalid_value", "response_format")),
        ({"seconds": 4}, (400, "unsupported_field", "seconds")),
        ({"background": "transparent"}, (400, "unsupported_field", "background")),
        ({"stream": True}, (400, "unsupported_field", "stream")),
        ({"colour": "red"}, (400, "unknown_field", "colour")),
        ({"prompt": "{refuse 0}", "n": 3}, (400, "invalid_value", "prompt")),
        ({"prompt": "{fail 0}"}, (500, "engine_failed", None)),
    ],
)
async def test_an_image_that_cannot_be_is_refused_by_name(
    server: ServerProcess, fields: dict[str, Any], refused: tuple[int, str, str | None]
) -> None:
    async with aiohttp.ClientSession(server.url) as http:
        assert await refusal(http, "POST", IMAGES, json={**asked(), **fields}) == refused
        await until_metrics(http, quiet)


async def test_a_client_that_leaves_while_its_images_are_made_ends_the_work(serve_process: Any) -> None:
    server = serve_process("--model", "paint", "--set", "brush.step_ms=2000", "--set", "brush.max_num_seqs=1")
    async with aiohttp.ClientSession(server.url) as http, aiohttp.ClientSession(server.url) as leaving:
        asking = leaving.post(IMAGES, json=asked(n=4))
        with pytest.raises(TimeoutError):
            await wait_briefly(asking)
        values = await until_metrics(http, quiet)
        assert values['streamsynth_images_total{model="paint",status="cancelled"}'] == 1


async def wait_briefly(asking: Any) -> None:

    await asyncio.wait_for(asking, 0.3)


async def test_an_image_that_is_waited_for_ends_with_the_drain_time(serve_process: Any) -> None:
    server = serve_process("--model", "paint", "--limit", "drain_s=0.2")
    async with aiohttp.ClientSession(server.url) as http:
        waiting = asyncio.create_task(refusal(http, "POST", IMAGES, json=asked("{stall 0}")))
        await until_metrics(http, lambda values: values["streamsynth_running"] == 1)
        os.kill(server.pid, signal.SIGTERM)
        assert await waiting == (503, "shutting_down", None)
    await ended(server)
