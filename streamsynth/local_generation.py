"""Clips and images by the models of this process, with the server's rules and error codes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from streamsynth.clip_file import ClipFile, film, last_picture
from streamsynth.codecs import encode_still
from streamsynth.generation import GeneratedImage, GeneratedVideo, OnProgress, unfinished
from streamsynth.interactions.messages import Notice, Progress
from streamsynth.realtime.clip_fields import parse_clip_fields, parse_image_fields, parse_image_format
from streamsynth.realtime.limits import Limits
from streamsynth.runtime import Runtime


class LocalGenerator:
    """Each clip is a flow of the runtime's."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def video(self, fields: Mapping[str, Any], path: Path, on_progress: OnProgress) -> GeneratedVideo:
        settings = parse_clip_fields(fields, self._runtime.video_models, Limits())
        request, frames = settings.request, settings.num_frames
        file = ClipFile(path, unfinished(path), width=request.width, height=request.height, fps=settings.fps)
        flow = self._runtime.open_video(settings.model, request, _progress(on_progress))
        try:
            await film(flow, file, frames, lambda: on_progress(file.frames / frames))
        finally:
            flow.cancel()
        return GeneratedVideo(
            model=settings.model,
            width=request.width,
            height=request.height,
            fps=settings.fps,
            num_frames=frames,
            seed=settings.seed,
            path=path,
        )

    async def image(self, fields: Mapping[str, Any], on_progress: OnProgress) -> GeneratedImage:
        settings = parse_image_fields(fields, self._runtime.video_models, Limits())
        format_ = parse_image_format(fields)
        request = settings.request
        flow = self._runtime.open_video(settings.model, request, _progress(on_progress))
        try:
            picture = await last_picture(flow)
        finally:
            flow.cancel()
        return GeneratedImage(
            data=await asyncio.to_thread(encode_still, picture, format_),
            format=format_.value,
            width=request.width,
            height=request.height,
            seed=settings.seed,
        )


def _progress(on_progress: OnProgress) -> Callable[[Notice], None]:
    def noticed(notice: Notice) -> None:
        if isinstance(notice, Progress):
            on_progress(min(1.0, notice.step / max(1, notice.steps)))

    return noticed
