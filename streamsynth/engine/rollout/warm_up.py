"""Running every size once before the first request: to measure what it takes, and so that nothing is first there."""

from __future__ import annotations

from collections.abc import Sequence

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
        model, pages=pages, page_tokens=page_tokens, max_videos=videos, quantised_pages=quantised_pages
    )
    warm_up(engine, sizes, videos)
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
    once in any case. Raises START_FAILED where no page fits."""
    nbytes = device.kv_bytes(lambda: measure_chunk(model, sizes, page_tokens, max_videos, quantised_pages=float8))
    pages = pool_pages(nbytes, page_bytes(model, page_tokens, quantised_pages=float8))
    engine = RolloutEngine(model, pages=pages, page_tokens=page_tokens, max_videos=max_videos, quantised_pages=float8)
    warm_up(engine, sizes)
    return engine


def warm_up(engine: RolloutEngine, sizes: Sequence[Size], videos: int = 1) -> None:
    """Make a whole window of each size; raises what the model raises."""
    for size in sizes:
        _make(engine, size, videos)


def _make(engine: RolloutEngine, size: Size, videos: int) -> None:
    model = engine.model
    pictures = model.clock.first_picture(model.window.frames // model.window.chunk + 1)
    request = VideoRequest(prompt=_PROMPT, width=size.width, height=size.height, num_frames=pictures, seed=0)
    running = [engine.open(request.to_wire()) for _ in range(videos)]
    while running:
        for stream, made in engine.step(running).made:
            if not isinstance(made, Emission):
                raise made
            if made.final:
                running = [each for each in running if each is not stream]
                stream.close()
