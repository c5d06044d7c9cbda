"""Running every size once before the first request: to measure what it takes, and so that nothing is first there."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence

from streamsynth.engine.cost import Rehearsal
from streamsynth.engine.kv.sizing import MeasuredDevice, pool_pages
from streamsynth.engine.rollout.engine import RolloutEngine
from streamsynth.engine.rollout.frame_memory import FrameMemory
from streamsynth.engine.rollout.model import VideoModel
from streamsynth.engine.stream import Emission
from streamsynth.video import Size, VideoRequest

_PROMPT = "the sea"


def page_bytes(model: VideoModel, page_tokens: int, *, quantised_pages: bool) -> int:
    """What a page of the model's keys and values takes, in all layers."""
    return FrameMemory(
        layers=model.layers,
        pages=1,
        page_tokens=page_tokens,
        heads=model.heads,
        head_dim=model.head_dim,
        like=model.like.to("meta"),
        quantised=quantised_pages,
    ).nbytes


def pages_of_videos(model: VideoModel, sizes: Sequence[Size], page_tokens: int, videos: int) -> int:
    """The pages that so many videos of the largest size keep."""
    tokens = max(model.frame_tokens(size.width, size.height) for size in sizes)
    return videos * model.window.frames * -(-tokens // page_tokens)


def measure_chunk(
    model: VideoModel, sizes: Sequence[Size], page_tokens: int, videos: int, *, quantised_pages: bool
) -> int:
    """Make full windows of every size, `videos` of them together; returns the bytes of pages that this took."""
    pages = 1 + pages_of_videos(model, sizes, page_tokens, videos)
    engine = RolloutEngine(
        model,
        pages=pages,
        page_tokens=page_tokens,
        max_videos=videos,
        quantised_pages=quantised_pages,
        captured=_captured(model, sizes),
    )
    warm_up(engine, sizes, videos)
    engine.close()
    del engine
    gc.collect()  # What it captured refers to itself, and its memory is wanted.
    return pages * page_bytes(model, page_tokens, quantised_pages=quantised_pages)


def ready_engine(
    model: VideoModel,
    sizes: Sequence[Size],
    device: MeasuredDevice,
    *,
    page_tokens: int,
    max_videos: int,
    float8: bool,
) -> RolloutEngine:
    """An engine with the pages that the device's budget gives, each size run at the most videos a pass if measured, and
    once in any case; on CUDA all passes are captured. Raises START_FAILED where no page fits."""
    if captured := _captured(model, sizes):
        model.capture_decoder(captured, max_rows=max_videos)
    nbytes = device.kv_bytes(lambda: measure_chunk(model, sizes, page_tokens, max_videos, quantised_pages=float8))
    pages = pool_pages(nbytes, page_bytes(model, page_tokens, quantised_pages=float8))
    engine = RolloutEngine(
        model,
        pages=pages,
        page_tokens=page_tokens,
        max_videos=max_videos,
        quantised_pages=float8,
        captured=captured,
    )
    tried = warm_up(engine, sizes)
    if max_videos > 1 and pages > pages_of_videos(model, sizes[:1], page_tokens, max_videos):
        tried += warm_up(engine, sizes[:1], max_videos)
    engine.rehearsals = tried
    return engine


def _captured(model: VideoModel, sizes: Sequence[Size]) -> Sequence[Size]:
    return sizes if model.like.is_cuda else ()


def warm_up(engine: RolloutEngine, sizes: Sequence[Size], videos: int = 1) -> list[Rehearsal]:
    """Make a whole window of each size, and say what a chunk took then; raises what the model raises."""
    return [_make(engine, size, videos) for size in sizes]


def _make(engine: RolloutEngine, size: Size, videos: int) -> Rehearsal:
    """`videos` together. What is timed is the last chunk, and the commit of the one before."""
    model = engine.model
    pictures = model.clock.first_picture(model.window.frames // model.window.chunk + 1)
    request = VideoRequest(prompt=_PROMPT, width=size.width, height=size.height, num_frames=pictures, seed=0)
    running = [engine.open(request.to_wire()) for _ in range(videos)]
    came_at, seconds = 0.0, 0.0
    while running:
        came = False
        for stream, made in engine.step(running).made:
            if not isinstance(made, Emission):
                raise made
            came = came or len(made.media) > 0
            if made.final:
                running = [each for each in running if each is not stream]
                stream.close()
        if came:
            now = time.perf_counter()
            came_at, seconds = now, now - came_at
    while engine.step(()).unfinished:
        pass
    return Rehearsal(videos, seconds, videos * model.window.chunk * model.clock.stride / model.fps)
