"""Clips and images of a server: by its jobs, polled until they are finished, and by its route for images."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.generation import GeneratedImage, GeneratedVideo, OnProgress, unfinished
from streamsynth.realtime.settings import is_loopback
from streamsynth.remote_errors import connection_failed, known_code, refused_request
from streamsynth.remote_socket import CONNECT_TIMEOUT_S, http_url

logger = logging.getLogger(__name__)

VIDEOS_ROUTE, IMAGES_ROUTE = "/v1/videos", "/v1/images/generations"
_FIRST_POLL_S, _LAST_POLL_S = 0.05, 0.5
_READ_TIMEOUT_S = 40.0
_IMAGE_TIMEOUT_S = 3600.0
_GIVE_UP_S = 5.0
_PIECE_BYTES = 256 * 1024


class RemoteGenerator:
    """A connection for each clip or image. A clip's job stays with the server for as long as that keeps videos."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = http_url(url)
        self._videos, self._images = self._url + VIDEOS_ROUTE, self._url + IMAGES_ROUTE
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def video(self, fields: Mapping[str, Any], path: Path, on_progress: OnProgress) -> GeneratedVideo:
        async with self._session(_READ_TIMEOUT_S) as http:
            job = await _ask(http, "POST", self._videos, json=fields)
            try:
                job = await self._finished(http, job, on_progress)
            except BaseException:
                await _give_up(http, self._address(job))
                raise
            await _download(http, self._address(job) + "/content", path)
        width, height = job["size"].split("x")
        return GeneratedVideo(
            model=job["model"],
            width=int(width),
            height=int(height),
            fps=job["fps"],
            num_frames=job["num_frames"],
            seed=int(job["seed"]),
            path=path,
        )

    async def image(self, fields: Mapping[str, Any], on_progress: OnProgress) -> GeneratedImage:
        async with (
            self._session(_IMAGE_TIMEOUT_S) as http,
            _answered(http, "POST", self._images, json=fields) as answer,
        ):
            body, seed = await answer.json(), int(answer.headers["X-Seed"])
        on_progress(1.0)
        width, height = body["size"].split("x")
        return GeneratedImage(
            data=b64decode(body["data"][0]["b64_json"]),
            format=body["output_format"],
            width=int(width),
            height=int(height),
            seed=seed,
        )

    def _address(self, job: Mapping[str, Any]) -> str:
        return f"{self._videos}/{job['id']}"

    @asynccontextmanager
    async def _session(self, read_timeout_s: float) -> AsyncIterator[aiohttp.ClientSession]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=read_timeout_s)
        local = is_loopback(urlsplit(self._url).hostname or "")
        try:
            async with aiohttp.ClientSession(headers=self._headers, timeout=timeout, trust_env=not local) as http:
                yield http
        except (aiohttp.ClientError, TimeoutError) as error:
            raise connection_failed(f"no connection to {self._url}: {error or type(error).__name__}") from error

    async def _finished(
        self, http: aiohttp.ClientSession, job: dict[str, Any], on_progress: OnProgress
    ) -> dict[str, Any]:
        wait_s = _FIRST_POLL_S
        while job["status"] not in ("completed", "failed"):
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_POLL_S)
            job = await _ask(http, "GET", self._address(job))
            on_progress(job["progress"] / 100)
        if job["status"] == "failed":
            error = job["error"]
            raise StreamSynthError(
                known_code(error["code"], ErrorCode.INTERNAL_ERROR), error["message"], param=error["param"]
            )
        return job


@asynccontextmanager
async def _answered(
    http: aiohttp.ClientSession, method: str, url: str, **options: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A good answer; raises StreamSynthError for any other."""
    async with http.request(method, url, **options) as answer:
        if answer.status != 200:
            raise refused_request(answer.status, answer.headers.get("Retry-After"), await answer.read())
        yield answer


async def _ask(http: aiohttp.ClientSession, method: str, url: str, **options: Any) -> dict[str, Any]:
    async with _answered(http, method, url, **options) as answer:
        body: dict[str, Any] = await answer.json()
        return body


async def _download(http: aiohttp.ClientSession, url: str, path: Path) -> None:
    part = unfinished(path)
    try:
        async with _answered(http, "GET", url) as answer:
            file = await asyncio.to_thread(part.open, "wb")
            with file:
                async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                    await asyncio.to_thread(file.write, piece)
        await asyncio.to_thread(part.replace, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


async def _give_up(http: aiohttp.ClientSession, url: str) -> None:
    """Nobody waits for the job any more, so it need not be made. Should this fail, it is, and is kept for its time."""
    try:
        async with asyncio.timeout(_GIVE_UP_S):
            await _ask(http, "DELETE", url)
    except (StreamSynthError, aiohttp.ClientError, TimeoutError) as error:
        logger.info("%s was not deleted: %s", url, error)
