"""`/v1/videos` and images by models that make whole clips: folders in diffusers' layout, equal to diffusers."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import aiohttp
import av
import numpy as np
from over_videos import VIDEOS, content, finished, refusal, until
from small_pipelines.clips import STEPS, called_directly, options, request, save

from streamsynth.codecs import StillFormat, encode_still

ASKED: dict[str, Any] = {
    "prompt": "a red fox",
    "negative_prompt": "blue",
    "size": "64x32",
    "seed": 7,
    "num_inference_steps": STEPS,
    "guidance_scale": 3.5,
}


def serve(serve_process: Any, folder: Path, **changed: Any) -> str:
    sets = [f"denoiser.{name}={value}".replace("'", "") for name, value in options(folder, **changed).items()]
    arguments = [argument for each in sets for argument in ("--set", each)]
    url: str = serve_process("--model", "diffusers", *arguments).url
    return url


def decoded(data: bytes) -> np.ndarray:
    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


async def test_a_job_tells_every_step_and_its_file_is_what_diffusers_makes(serve_process: Any, tmp_path: Path) -> None:
    folder = save("wan", tmp_path)
    async with aiohttp.ClientSession(serve(serve_process, folder)) as http:
        async with http.get("/v1/limits") as answer:
            (model,) = (await answer.json())["models"].values()
        assert (model["makes"], model["realtime"], model["frame_step"]) == (["video"], False, 4)
        assert (model["max_steps"], model["guidance"], model["limits"]["max_frames"]) == (20, True, 9)
        async with http.post(VIDEOS, json={**ASKED, "num_frames": 9}) as answer:
            job = await answer.json()
        seen = [job]
        while not finished(seen[-1]):
            seen.append(await until(http, job["id"], lambda each: finished(each) or each != seen[-1]))
        assert seen[-1]["status"] == "completed", seen[-1]["error"]
        steps = [each["step"] for each in seen if each["step"]]
        assert steps == sorted(steps) and steps[-1] == STEPS and seen[-1]["steps"] == STEPS
        running = [each for each in seen if each["step"] and not finished(each)]
        assert all(each["progress"] == min(99, 100 * each["step"] // STEPS) for each in running)
        pictures = decoded(await content(http, job["id"]))
        expected = called_directly("wan", folder, request("wan"))
        assert pictures.shape == expected.shape
        # H.264 keeps half of the colours' resolution, and these are the pictures of random weights.
        luma = np.array([0.2126, 0.7152, 0.0722])
        assert np.abs(pictures @ luma - expected @ luma).mean() < 6

        for fields, param in (({"num_frames": 8}, "num_frames"), ({"num_inference_steps": 21}, "num_inference_steps")):
            assert (await refusal(http, "POST", VIDEOS, json={**ASKED, **fields}))[2] == param
        expected_refusal = (404, "model_not_found", "model")
        assert await refusal(http, "POST", "/v1/images/generations", json=ASKED) == expected_refusal
        async with http.post(VIDEOS, json={**ASKED, "num_frames": 9, "num_inference_steps": 20}) as answer:
            doomed = await answer.json()
        async with http.delete(f"{VIDEOS}/{doomed['id']}") as answer:
            assert answer.status == 200


async def test_an_image_is_to_the_bit_what_diffusers_makes(serve_process: Any, tmp_path: Path) -> None:
    folder = save("sd3", tmp_path)
    async with aiohttp.ClientSession(serve(serve_process, folder)) as http:
        async with http.post("/v1/images/generations", json=ASKED) as answer:
            assert answer.status == 200, await answer.text()
            (image,) = (await answer.json())["data"]
        assert await refusal(http, "POST", VIDEOS, json=ASKED) == (404, "model_not_found", "model")
    picture = decoded(base64.b64decode(image["b64_json"]))
    assert np.abs(picture.astype(int) - called_directly("sd3", folder, request("sd3"))).max() <= 1


async def test_a_clip_begins_with_the_picture_that_was_sent(serve_process: Any, tmp_path: Path) -> None:
    """Inline or uploaded, it is the same clip."""
    folder = save("wan-image-to-video", tmp_path)
    first = np.random.default_rng(1).integers(0, 256, (32, 64, 3), np.uint8)
    file = encode_still(first, StillFormat.PNG)
    fields = {name: str(value) for name, value in {**ASKED, "num_frames": 5}.items()}
    form = aiohttp.FormData(fields)
    form.add_field("input_reference", file, filename="first.png", content_type="image/png")
    inline = {**fields, "input_reference": base64.b64encode(file).decode()}
    async with aiohttp.ClientSession(serve(serve_process, folder)) as http:
        clips = []
        for body in ({"json": inline}, {"data": form}):
            async with http.post(f"{VIDEOS}/sync", **body) as answer:
                assert answer.status == 200, await answer.text()
                clips.append(await answer.read())
        assert clips[0] == clips[1] and len(decoded(clips[0])) == 5
        missing = (400, "missing_field", "input_reference")
        assert await refusal(http, "POST", VIDEOS, json=ASKED) == missing
