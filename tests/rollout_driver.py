"""Steps videos of a rollout engine as the worker's loop does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsynth.engine.rollout.engine import RolloutEngine, RolloutStream
from streamsynth.engine.rollout.model import VideoModel
from streamsynth.engine.stream import Emission
from streamsynth.errors import StreamSynthError
from streamsynth.video import Size, VideoRequest

PAGE_TOKENS = 3
"""Not a divisor of a frame's 4 tokens at 32x32, nor of 8 at 64x32."""


def engine_of(
    model: VideoModel,
    *,
    videos: int = 4,
    quantised: bool = False,
    pages: int | None = None,
    captured: Sequence[Size] = (),
) -> RolloutEngine:
    usable = videos * model.window.frames * 3 if pages is None else pages
    return RolloutEngine(
        model,
        pages=usable + 1,
        page_tokens=PAGE_TOKENS,
        max_videos=4,
        quantised_pages=quantised,
        captured=captured,
    )


def open_video(engine: RolloutEngine, prompt: str = "a", *, seed: int = 1, **fields: Any) -> RolloutStream:
    fields = {"width": 32, "height": 32, "num_frames": None} | fields
    return engine.open(VideoRequest(prompt=prompt, seed=seed, **fields).to_wire())


def step(engine: RolloutEngine, streams: Sequence[RolloutStream]) -> dict[RolloutStream, list[Emission]]:
    """One step, as the worker's loop makes it: without the streams that must wait."""
    made: dict[RolloutStream, list[Emission]] = {stream: [] for stream in streams}
    for stream, emission in engine.step([stream for stream in streams if stream.wake_at() == 0.0]).made:
        if isinstance(emission, StreamSynthError):
            raise emission
        assert isinstance(stream, RolloutStream)
        made[stream].append(emission)
    return made


def pictures_of(engine: RolloutEngine, stream: RolloutStream, chunks: int) -> list[np.ndarray[Any, Any]]:
    """The next chunks of a video that is alone, committed too."""
    made: list[np.ndarray[Any, Any]] = []
    while len(made) < chunks:
        made += [emission.media for emission in step(engine, [stream])[stream] if len(emission.media)]
    settle(engine)
    return made


def settle(engine: RolloutEngine) -> None:
    """Do what nobody waits for."""
    while engine.step([]).unfinished:
        pass


def run(engine: RolloutEngine, streams: dict[RolloutStream, int]) -> dict[RolloutStream, np.ndarray[Any, Any]]:
    """So many chunks of each, all running at once."""
    made: dict[RolloutStream, list[np.ndarray[Any, Any]]] = {stream: [] for stream in streams}
    while any(len(made[stream]) < chunks for stream, chunks in streams.items()):
        wanting = [stream for stream, chunks in streams.items() if len(made[stream]) < chunks]
        for stream, emissions in step(engine, wanting).items():
            made[stream] += [emission.media for emission in emissions if len(emission.media)]
    settle(engine)
    return {stream: np.concatenate(chunks) for stream, chunks in made.items()}


def nearly_equal(made: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], levels: int = 1) -> bool:
    """Design rule 5, after quantisation to 256 levels."""
    return made.shape == expected.shape and int(np.abs(made.astype(int) - expected).max()) <= levels
