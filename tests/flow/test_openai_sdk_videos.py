"""The published OpenAI SDK, unmodified, makes videos and images: creates, polls, downloads, lists, deletes."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import av
import openai
import pytest
from over_videos import frames

from streamsynth.testing.paint import COLOURS, read_picture
from streamsynth.testing.server_process import ServerProcess

# OpenAI's own service ends; the SDK says so at each call.
pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

KEY = "sdk-key_1"
SMALL: Any = "128x128"


@pytest.fixture(scope="module")
def server(shared_serve_process: Any) -> ServerProcess:
    return shared_serve_process("--model", "paint", env={"STREAMSYNTH_API_KEYS": KEY})


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        yield sdk


@pytest.fixture
async def awaited(server: ServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        yield sdk


def test_a_video_is_created_polled_downloaded_and_deleted(client: openai.OpenAI, tmp_path: Path) -> None:
    video = client.videos.create(prompt="a red field", seconds="4", size=SMALL)
    assert (video.object, video.model, video.seconds, video.size) == ("video", "paint", "4", "128x128")
    video = client.videos.poll(video.id, poll_interval_ms=20)
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    assert video.completed_at is not None and video.expires_at is not None and video.expires_at > video.completed_at
    client.videos.download_content(video.id).write_to_file(tmp_path / "clip.mp4")
    assert frames((tmp_path / "clip.mp4").read_bytes()) == list(range(64))
    thumbnail = client.videos.download_content(video.id, variant="thumbnail").read()
    assert thumbnail.startswith(b"\xff\xd8\xff")
    assert client.videos.delete(video.id).deleted
    with pytest.raises(openai.NotFoundError) as gone:
        client.videos.retrieve(video.id)
    assert gone.value.code == "not_found"


def test_our_own_fields_go_in_the_extra_body(client: openai.OpenAI) -> None:
    ours = {"seed": 7, "num_frames": 20, "metadata": {"who": "me"}}
    video = client.videos.create(prompt="green", size=SMALL, extra_body=ours)
    assert video.to_dict()["seed"] == "7" and video.seconds == "1.25"
    assert client.videos.poll(video.id).status == "completed"


def test_listing_turns_its_own_pages(client: openai.OpenAI) -> None:
    made = [client.videos.create(prompt="red", size=SMALL, extra_body={"num_frames": 1}).id for _ in range(3)]
    assert [video.id for video in client.videos.list(limit=2)][:3] == made[::-1]
    ascending = [video.id for video in client.videos.list(limit=1, order="asc")]
    assert ascending[-3:] == made


async def test_the_asynchronous_client_waits_for_a_video(awaited: openai.AsyncOpenAI) -> None:
    video = await awaited.videos.create_and_poll(prompt="blue", size=SMALL, seconds="4", poll_interval_ms=20)
    assert video.status == "completed"
    data = await awaited.videos.download_content(video.id)
    assert len(frames(data.content)) == 64
    assert (await awaited.videos.delete(video.id)).deleted


def test_a_video_that_failed_says_why(client: openai.OpenAI) -> None:
    video = client.videos.create(prompt="{fail 1}", size=SMALL)
    video = client.videos.poll(video.id, poll_interval_ms=20)
    assert video.status == "failed" and video.error is not None
    assert (video.error.code, video.error.message) == ("engine_failed", "told to fail at chunk 1")


def test_images_come_as_base64(client: openai.OpenAI) -> None:
    answer = client.images.generate(prompt="a purple field", model="paint", n=2, size=SMALL, output_format="png")
    assert (answer.size, answer.output_format, len(answer.data or [])) == ("128x128", "png", 2)
    for image in answer.data or []:
        with av.open(io.BytesIO(base64.b64decode(image.b64_json or ""))) as container:
            picture = next(container.decode(video=0)).to_ndarray(format="rgb24")
        assert read_picture(picture).colour == COLOURS["purple"]


def test_refusals_are_the_sdks_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.videos.create(prompt="red", size="720x1280")
    assert (bad.value.code, bad.value.param) == ("invalid_value", "size")
    with pytest.raises(openai.NotFoundError) as missing:
        client.videos.create(prompt="red", model="sora-2")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.images.generate(prompt="red", n=99)
    assert wrong.value.param == "n"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.videos.create(prompt="red", input_reference=("a.png", b"\x89PNG", "image/png"))
    assert (unsupported.value.code, unsupported.value.param) == ("unsupported_field", "input_reference")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").videos.list()
