"""`/v1/videos`: a job is made in its turn, says how far it is, and its file is the clip that was asked for."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import aiohttp
import av
import pytest
from over_http import metrics, quiet, until_metrics
from over_videos import SMALL, VIDEOS, content, create, finished, frames, pictures, refusal, show, until

from streamsynth.testing.faults import kill_worker
from streamsynth.testing.paint import COLOURS
from streamsynth.testing.server_process import ServerProcess

SLOW = ("--model", "paint", "--set", "brush.step_ms=60")
"""A chunk of 12 pictures in 60 ms."""


@pytest.fixture(scope="module")
def server(shared_serve_process: Any) -> ServerProcess:
    return shared_serve_process("--model", "paint")


async def test_a_job_goes_from_queued_to_completed_with_real_progress(serve_process: Any) -> None:
    async with aiohttp.ClientSession(serve_process(*SLOW).url) as http:
        job = await create(http, "a blue field", num_frames=81, seed=-5)
        assert (job["object"], job["status"], job["progress"]) == ("video", "queued", 0)
        assert (job["model"], job["size"], job["seed"], job["fps"]) == ("paint", "128x128", "-5", 16)
        seen = [job]
        while not finished(seen[-1]):
            seen.append(await until(http, job["id"], lambda each: finished(each) or each != seen[-1]))
        # 9 pictures, then 12 at a time: what is said is what is made.
        assert [each["frames_made"] for each in seen if each["frames_made"]][:4] == [9, 21, 33, 45]
        assert all(each["progress"] == min(99, 100 * each["frames_made"] // 81) for each in seen[:-1])
        assert seen[-1]["status"] == "completed" and seen[-1]["progress"] == 100
        data = await content(http, job["id"])
        assert seen[-1]["bytes"] == len(data)
    assert frames(data) == list(range(81))
    assert all(abs(a - b) < 12 for a, b in zip(pictures(data)[-1].colour, COLOURS["blue"], strict=True))


async def test_the_same_seed_and_prompt_make_the_same_file(server: ServerProcess) -> None:
    async with aiohttp.ClientSession(server.url) as http:
        jobs = [await create(http, "red", num_frames=20, seed=7) for _ in range(2)]
        for job in jobs:
            await until(http, job["id"], finished)
        first, second = [await content(http, job["id"]) for job in jobs]
    assert first == second


async def test_a_job_that_is_deleted_ends_at_once_and_leaves_nothing(serve_process: Any, tmp_path: Path) -> None:
    server = serve_process(*SLOW, "--data", str(tmp_path))
    async with aiohttp.ClientSession(server.url) as http:
        job = await create(http, num_frames=16_000)
        await until(http, job["id"], lambda each: each["frames_made"] > 0)
        async with http.delete(f"{VIDEOS}/{job['id']}") as answer:
            assert await answer.json() == {"id": job["id"], "object": "video.deleted", "deleted": True}
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            assert await refusal(http, method, f"{VIDEOS}/{job['id']}{path}") == (404, "not_found", "video_id")
        values = await until_metrics(http, quiet)
        assert values['streamsynth_video_jobs_total{model="paint",status="cancelled"}'] == 1
        assert values["streamsynth_stored_videos"] == values["streamsynth_stored_video_bytes"] == 0
    assert os.listdir(tmp_path) == ["lock"]


async def test_a_job_whose_model_fails_says_so_for_ever(server: ServerProcess) -> None:
    async with aiohttp.ClientSession(server.url) as http:
        job = await create(http, "{fail 2}", seconds=3)
        job = await until(http, job["id"], finished)
        assert job["status"] == "failed" and job["completed_at"] is not None
        assert (job["error"]["code"], job["error"]["message"]) == ("engine_failed", "told to fail at chunk 2")
        assert await refusal(http, "GET", f"{VIDEOS}/{job['id']}/content") == (404, "not_found", "video_id")
        assert (await metrics(http))['streamsynth_video_jobs_total{model="paint",status="failed"}'] == 1


async def test_what_the_model_refuses_is_refused_before_there_is_a_job(serve_process: Any) -> None:
    """Also while the model's only place is taken, and jobs wait for it."""
    server = serve_process("--model", "paint", "--set", "brush.max_num_seqs=1")
    async with aiohttp.ClientSession(server.url) as http:
        jobs = [await create(http, "{stall 1}"), await create(http)]
        await until(http, jobs[0]["id"], lambda job: job["status"] == "in_progress")
        asked = {"prompt": "{refuse 0}", **SMALL}
        assert await refusal(http, "POST", VIDEOS, json=asked) == (400, "invalid_value", "prompt")
        async with http.get(VIDEOS) as answer:
            assert [job["id"] for job in (await answer.json())["data"]] == [job["id"] for job in reversed(jobs)]
        for job in jobs:
            await http.delete(f"{VIDEOS}/{job['id']}")
        await until_metrics(http, quiet)


async def test_a_prompt_that_a_world_cannot_read_is_refused_by_name(serve_process: Any) -> None:
    async with aiohttp.ClientSession(serve_process("--model", "tiny-world").url) as http:
        for prompt in ("an elephant", "one red ball bouncing over a green meadow by day, clear sky, " * 60):
            asked = {"prompt": prompt, **SMALL}
            assert (await refusal(http, "POST", VIDEOS, json=asked))[::2] == (400, "prompt")


async def test_jobs_wait_in_their_order_and_too_many_are_refused(serve_process: Any) -> None:
    server = serve_process(*SLOW, "--set", "brush.max_num_seqs=1", "--limit", "queued_videos=2")
    async with aiohttp.ClientSession(server.url) as http:
        jobs = [await create(http, num_frames=45)]
        await until(http, jobs[0]["id"], lambda job: job["status"] == "in_progress")
        jobs += [await create(http, num_frames=21) for _ in range(2)]
        async with http.post(VIDEOS, json={"prompt": "red"}) as answer:
            assert answer.status == 429 and int(answer.headers["Retry-After"]) >= 1
            assert "queued_videos" in (await answer.json())["error"]["message"]
        values = await metrics(http)
        assert (values["streamsynth_video_jobs_queued"], values["streamsynth_video_jobs_in_progress"]) == (2, 1)
        assert await refusal(http, "GET", f"{VIDEOS}/{jobs[2]['id']}/content") == (409, "not_ready", "video_id")
        done = [await until(http, job["id"], finished) for job in reversed(jobs)]
        assert all(job["status"] == "completed" for job in done)
        assert done[0]["completed_at"] >= done[1]["completed_at"] >= done[2]["completed_at"]
        await until_metrics(http, quiet)


async def test_a_job_waits_for_a_model_that_is_busy_with_others(serve_process: Any) -> None:
    """The only place is taken by a client that is connected; the worker's own queue refuses at once."""
    server = serve_process("--model", "paint", "--set", "brush.max_num_seqs=1", "--set", "brush.max_queued=0")
    async with aiohttp.ClientSession(server.url) as http:
        asked = {"prompt": "{stall 3}", "size": "128x128"}
        async with http.post(f"{VIDEOS}/sync", json=asked) as held:
            job = await create(http, num_frames=9)
            assert (await show(http, job["id"]))["status"] == "queued"
            held.close()
        assert (await until(http, job["id"], finished))["status"] == "completed"


async def test_a_dead_worker_fails_what_it_was_making_and_the_next_is_made_by_its_successor(serve_process: Any) -> None:
    server = serve_process(*SLOW, "--set", "brush.max_num_seqs=1")
    async with aiohttp.ClientSession(server.url) as http:
        broken = await create(http, num_frames=16_000)
        await until(http, broken["id"], lambda job: job["frames_made"] > 0)
        waiting = await create(http, num_frames=21)
        kill_worker(server.worker_pids()[0])
        broken = await until(http, broken["id"], finished)
        assert (broken["status"], broken["error"]["code"]) == ("failed", "worker_died")
        waiting = await until(http, waiting["id"], finished)
        assert waiting["status"] == "completed"
        assert frames(await content(http, waiting["id"])) == list(range(21))


async def test_a_job_in_the_line_of_a_worker_that_dies_is_made_by_its_successor(serve_process: Any) -> None:
    """A client that is connected has the worker's only place."""
    server = serve_process("--model", "paint", "--set", "brush.max_num_seqs=1")
    async with aiohttp.ClientSession(server.url) as http:
        asked = {"prompt": "{stall 3}", "size": "128x128"}
        async with http.post(f"{VIDEOS}/sync", json=asked):
            job = await create(http, num_frames=21)
            await until_metrics(http, lambda values: values["streamsynth_live_flows"] == 2)
            kill_worker(server.worker_pids()[0])
            job = await until(http, job["id"], finished)
        assert (job["status"], job["error"]) == ("completed", None)


async def test_a_keys_videos_are_its_own(serve_process: Any) -> None:
    server = serve_process("--model", "paint", env={"STREAMSYNTH_API_KEYS": "one,two"})
    headers = [{"Authorization": f"Bearer {key}"} for key in ("one", "two")]
    async with (
        aiohttp.ClientSession(server.url, headers=headers[0]) as one,
        aiohttp.ClientSession(server.url, headers=headers[1]) as two,
        aiohttp.ClientSession(server.url) as nobody,
    ):
        job = await create(one, num_frames=9)
        path = f"{VIDEOS}/{job['id']}"
        for method, suffix in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            assert await refusal(two, method, path + suffix) == (404, "not_found", "video_id")
            assert (await refusal(nobody, method, path + suffix))[:2] == (401, "unauthorized")
        assert (await refusal(nobody, "POST", VIDEOS, json={"prompt": "red"}))[0] == 401
        assert (await refusal(nobody, "POST", "/v1/images/generations", json={"prompt": "red"}))[0] == 401
        async with two.get(VIDEOS) as answer:
            assert (await answer.json())["data"] == []
        assert (await show(one, job["id"]))["id"] == job["id"]


async def test_pages_of_the_list_hold_every_job_once(serve_process: Any) -> None:
    async with aiohttp.ClientSession(serve_process("--model", "paint").url) as http:
        made = [(await create(http, num_frames=1))["id"] for _ in range(5)]

        async def page(**query: Any) -> tuple[list[str], bool]:
            async with http.get(VIDEOS, params=query) as answer:
                body = await answer.json()
                assert (body["first_id"], body["last_id"]) == (body["data"][0]["id"], body["data"][-1]["id"])
                return [job["id"] for job in body["data"]], body["has_more"]

        assert await page() == (made[::-1], False)
        assert await page(limit=2) == ([made[4], made[3]], True)
        assert await page(limit=3, after=made[3]) == ([made[2], made[1], made[0]], False)
        assert await page(order="asc", limit=2, after=made[0]) == ([made[1], made[2]], True)
        for query, param in (({"limit": 0}, "limit"), ({"order": "up"}, "order"), ({"after": "x"}, "after")):
            assert await refusal(http, "GET", VIDEOS, params=query) == (400, "invalid_value", param)
        assert await refusal(http, "GET", VIDEOS, params={"colour": "red"}) == (400, "unknown_field", "colour")


async def test_a_part_of_the_file_can_be_asked_for(server: ServerProcess) -> None:
    async with aiohttp.ClientSession(server.url) as http:
        job = await create(http, num_frames=30)
        await until(http, job["id"], finished)
        whole, path = await content(http, job["id"]), f"{VIDEOS}/{job['id']}/content"
        size = len(whole)
        for asked, expected in (("bytes=0-1", (0, 2)), ("bytes=100-", (100, size)), ("bytes=-7", (size - 7, size))):
            async with http.get(path, headers={"Range": asked}) as answer:
                first, end = expected
                assert (answer.status, await answer.read()) == (206, whole[first:end])
                assert answer.headers["Content-Range"] == f"bytes {first}-{end - 1}/{size}"
        for asked in (f"bytes={size}-", "bytes=-0"):
            async with http.get(path, headers={"Range": asked}) as answer:
                assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{size}")
                assert (await answer.json())["error"] == {
                    "message": f"Range is '{asked}'; it must have some of the {size} bytes that there are",
                    "type": "invalid_request_error",
                    "param": "Range",
                    "code": "range_not_satisfiable",
                }
        async with http.head(path) as answer:
            assert (answer.status, answer.content_type) == (200, "video/mp4")
            assert int(answer.headers["Content-Length"]) == size
        async with http.get(path, params={"variant": "thumbnail"}) as answer:
            assert answer.content_type == "image/jpeg"
            thumbnail = await answer.read()
        with av.open(io.BytesIO(thumbnail)) as container:
            assert next(container.decode(video=0)).width == 128
        assert await refusal(http, "GET", path, params={"variant": "spritesheet"}) == (400, "invalid_value", "variant")


@pytest.mark.parametrize("kind", ["json", "multipart", "urlencoded"])
async def test_the_fields_come_as_json_or_as_a_form(server: ServerProcess, kind: str) -> None:
    fields = {"prompt": "grün", "size": "128x128", "seconds": "0.5", "seed": "9", "user": "me"}
    form = aiohttp.FormData(fields)
    if kind == "multipart":
        form = aiohttp.FormData()
        for name, value in fields.items():
            form.add_field(name, value, content_type="text/plain; charset=utf-8")
    body: dict[str, Any] = {"json": fields} if kind == "json" else {"data": form}
    async with aiohttp.ClientSession(server.url) as http, http.post(VIDEOS, **body) as answer:
        job = await answer.json()
        assert answer.headers["X-Ignored-Fields"] == "user"
        assert (job["prompt"], job["seconds"], job["seed"]) == ("grün", "0.5", "9")


async def test_a_body_that_cannot_be_is_refused(server: ServerProcess) -> None:
    async with aiohttp.ClientSession(server.url) as http:
        multipart = {"Content-Type": "multipart/form-data; boundary=x"}
        urlencoded = {"Content-Type": "application/x-www-form-urlencoded"}
        for body, headers in (
            (b"not a form", multipart),
            (b"", {"Content-Type": "multipart/form-data"}),
            (b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nred', multipart),
            (_part(b"Content-Type: text/plain; charset=none"), multipart),
            (_part(b"Content-Transfer-Encoding: none"), multipart),
            (b"prompt=red", {"Content-Type": "application/x-www-form-urlencoded; charset=none"}),
            (b"&".join(b"a%d=1" % number for number in range(1001)), urlencoded),
        ):
            status, code, _ = await refusal(http, "POST", VIDEOS, data=body, headers=headers)
            assert (status, code) in {(400, "invalid_value"), (400, "missing_field")}
        assert (await refusal(http, "POST", VIDEOS, data=b"{"))[:2] == (400, "invalid_json")
        form = aiohttp.FormData([("prompt", "a"), ("prompt", "b")])
        assert await refusal(http, "POST", VIDEOS, data=form) == (400, "invalid_value", "prompt")
        form = aiohttp.FormData(
            [("prompt", "a"), ("input_reference[image_url]", "b"), ("input_reference[image_url]", "c")]
        )
        assert await refusal(http, "POST", VIDEOS, data=form) == (400, "invalid_value", "input_reference[image_url]")
        picture = aiohttp.FormData({"prompt": "red"})
        picture.add_field("input_reference", b"\x89PNG", filename="a.png", content_type="image/png")
        expected = (400, "unsupported_field", "input_reference")
        assert await refusal(http, "POST", VIDEOS, data=picture) == expected
        large = io.BytesIO(b"prompt=" + b"x" * (7 << 20))
        assert (await refusal(http, "POST", VIDEOS, data=large, headers=urlencoded))[:2] == (413, "message_too_large")
        assert (await refusal(http, "POST", VIDEOS, json={"prompt": "x", "size": "1x1"}))[2] == "size"


def _part(header: bytes) -> bytes:
    return b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n' + header + b"\r\n\r\nred\r\n--x--\r\n"


async def test_a_server_without_such_a_model_says_so(shared_serve_process: Any) -> None:
    async with aiohttp.ClientSession(shared_serve_process("--model", "sine").url) as http:
        for method, path in (("POST", ""), ("GET", ""), ("GET", "/video_1"), ("POST", "/sync")):
            body = {"json": {"prompt": "red"}} if method == "POST" else {}
            assert await refusal(http, method, VIDEOS + path, **body) == (404, "model_not_found", "model")
        expected = (404, "model_not_found", "model")
        assert await refusal(http, "POST", "/v1/images/generations", json={"prompt": "red"}) == expected
