"""An engine that paints pictures which say what they are, and misbehaves where its prompt says so.

The background is the colour that the prompt names (else one of its hash), blended while a transition runs. Two rows of
squares, light for 1, carry four numbers that survive an encoder; `read_picture` finds them all again. Directives in a
prompt: `{fail 3}` raises before chunk 3, `{stall 3}` makes nothing from there on, `{refuse 0}` is a prompt that the
model cannot take.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamsynth.engine.stream import Emission, Interrupted
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.blender import Blender
from streamsynth.interactions.messages import ChunkReport, Interaction, Kv, Notice
from streamsynth.interactions.steering import BlendHandler, ChunkPlan, Steering
from streamsynth.testing.paint_pipeline import CHUNK_FRAMES, FIRST_CHUNK_FRAMES, FPS
from streamsynth.video import VideoRequest

Colour: TypeAlias = tuple[int, int, int]

COLOURS: Mapping[str, Colour] = {
    "red": (200, 40, 40),
    "green": (40, 180, 60),
    "blue": (40, 70, 200),
    "yellow": (220, 200, 40),
    "purple": (140, 50, 170),
    "grey": (120, 120, 120),
}

_DIRECTIVE = re.compile(r"\{(fail|stall|refuse) (\d{1,6})\}")
_COLUMNS = 32
_LIGHT, _DARK = 235, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Painted:
    """What a picture says of itself. `epoch` counts the recaches and resets before it; numbers wrap at 2^24, 2^8, 2^16
    and 2^8. `colour` is the background's mean."""

    frame: int
    prompt_version: int
    chunk: int
    epoch: int
    colour: Colour


def colour_of(prompt: str) -> Colour:
    for word in re.findall(r"[a-z]+", prompt.lower()):
        if word in COLOURS:
            return COLOURS[word]
    red, green, blue = hashlib.sha256(prompt.encode()).digest()[:3]
    return (40 + red % 180, 40 + green % 180, 40 + blue % 180)


def read_picture(picture: npt.NDArray[np.uint8]) -> Painted:
    """The numbers in a picture that the engine painted, also after lossy encoding."""
    side = picture.shape[1] // _COLUMNS
    luma = picture[: 2 * side, : _COLUMNS * side].astype(np.float64).mean(axis=2)
    bits = luma.reshape(2, side, _COLUMNS, side).mean(axis=(1, 3)) > (_LIGHT + _DARK) / 2
    upper, lower = (int("".join("01"[int(bit)] for bit in row), 2) for row in bits)
    red, green, blue = (round(float(channel)) for channel in picture[-4:, -8:].reshape(-1, 3).mean(axis=0))
    return Painted(
        frame=upper >> 8,
        prompt_version=upper & 0xFF,
        chunk=lower >> 16,
        epoch=lower >> 8 & 0xFF,
        colour=(red, green, blue),
    )


def paint(width: int, height: int, said: Painted, seed: int) -> npt.NDArray[np.uint8]:
    """The picture that says this: uint8 RGB of shape (height, width, 3)."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = said.colour
    side = width // _COLUMNS
    rows = ((said.frame & 0xFFFFFF) << 8 | said.prompt_version & 0xFF, (said.chunk & 0xFFFF) << 16 | said.epoch << 8)
    for row, number in enumerate(rows):
        bits = np.array([number >> shift & 1 for shift in range(_COLUMNS - 1, -1, -1)], bool)
        line = np.where(np.repeat(bits, side), _LIGHT, _DARK).astype(np.uint8)
        picture[row * side : (row + 1) * side, : _COLUMNS * side] = line[None, :, None]
    size = height // 6
    top, bottom = 3 * side, height - size - 8
    left = _to_and_fro(4 * said.frame + seed % 97, width - size)
    down = top + _to_and_fro(3 * said.frame + seed % 89, bottom - top)
    picture[down : down + size, left : left + size] = 245
    return picture


def _to_and_fro(position: int, room: int) -> int:
    turn = position % (2 * room)
    return min(turn, 2 * room - turn)


class PaintEngine:
    """A chunk keeps the worker busy for `step_ms`; with `real_time`, none is begun before the time of its first
    picture, counted from the first chunk."""

    def __init__(self, *, real_time: bool = False, step_ms: float = 0.0) -> None:
        self.real_time = real_time
        self.step_s = step_ms / 1000
        self.live = self.opened = self.chunks = self.interactions = self.prepared = 0

    def open(self, request: Mapping[str, Any]) -> PaintStream:
        stream = PaintStream(self, VideoRequest.from_wire(dict(request)))
        self.live += 1
        self.opened += 1
        return stream

    def counters(self) -> dict[str, int]:
        names = ("live", "opened", "chunks", "interactions", "prepared")
        return {name: getattr(self, name) for name in names}

    def close(self) -> None:
        pass


class PaintStream:
    """One video."""

    def __init__(self, engine: PaintEngine, request: VideoRequest) -> None:
        self._engine = engine
        self._request = request
        self._fail_at: int | None = None
        self._stall_at: int | None = None
        self._colour: Blender[Colour] = Blender(self._prepare(request.prompt), _mix)
        self._seed: Blender[int] = Blender(request.seed or 0, lambda source, _target, _weight: source)
        self._steering = Steering(
            {"prompt": BlendHandler(self._colour, self._prepare), "seed": BlendHandler(self._seed, int)}
        )
        self._plan: ChunkPlan | None = None
        self._made = 0
        self._epoch = 0
        self._finished = False
        self._began_at: float | None = None
        self._interrupted = threading.Event()

    def interact(self, interaction: Interaction) -> tuple[Notice, ...]:
        self._engine.interactions += 1
        return self._steering.interact(interaction)

    def finish(self) -> None:
        self._finished = True

    def _prepare(self, prompt: str) -> Colour:
        self._engine.prepared += 1
        for name, number in _DIRECTIVE.findall(prompt):
            match name:
                case "fail":
                    self._fail_at = int(number)
                case "stall":
                    self._stall_at = int(number)
                case _:
                    message = "the prompt asks to be refused"
                    raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="prompt")
        return colour_of(prompt)

    def wake_at(self) -> float | None:
        if self._began_at is None or not self._engine.real_time or self._finished:
            return 0.0
        return self._began_at + self._made / FPS

    def step(self) -> Emission | None:
        if self._interrupted.is_set():
            raise Interrupted
        if self._plan is None:
            return self._begin_chunk()
        if self._engine.step_s and self._interrupted.wait(self._engine.step_s):
            raise Interrupted
        return self._paint_chunk(self._plan)

    def _begin_chunk(self) -> Emission:
        if self._finished:
            end = ChunkReport(self._steering.chunk)
            return Emission(self._nothing(), FPS, report=end, notices=self._steering.stop(), final=True)
        plan = self._plan = self._steering.next_chunk(self._made)
        self._began_at = time.monotonic() if self._began_at is None else self._began_at
        self._epoch += plan.kv is not Kv.KEEP
        return Emission(self._nothing(), FPS, report=plan.report, notices=plan.notices)

    def _paint_chunk(self, plan: ChunkPlan) -> Emission | None:
        chunk = plan.report.chunk
        if self._stall_at is not None and chunk >= self._stall_at:
            return None
        if self._fail_at is not None and chunk >= self._fail_at:
            raise StreamSynthError(ErrorCode.ENGINE_FAILED, f"told to fail at chunk {chunk}")
        frames = CHUNK_FRAMES if chunk else FIRST_CHUNK_FRAMES
        limit = self._request.num_frames
        cut = limit is not None and self._made + frames >= limit
        if limit is not None and cut:
            frames = limit - self._made
        pictures = np.stack([self._picture(self._made + k, plan) for k in range(frames)])
        self._made += frames
        self._engine.chunks += 1
        self._plan = None
        notices = self._steering.stop() if cut else ()
        reason = "length" if cut else "stop"
        return Emission(pictures, FPS, report=plan.report, notices=notices, final=cut, finish_reason=reason)

    def _picture(self, frame: int, plan: ChunkPlan) -> npt.NDArray[np.uint8]:
        said = Painted(
            frame=frame,
            prompt_version=plan.prompt_version,
            chunk=plan.report.chunk,
            epoch=self._epoch & 0xFF,
            colour=self._colour.value,
        )
        return paint(self._request.width, self._request.height, said, self._seed.value)

    def _nothing(self) -> npt.NDArray[np.uint8]:
        return np.zeros((0, self._request.height, self._request.width, 3), np.uint8)

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self._engine.live -= 1


def _mix(source: Colour, target: Colour, weight: Fraction) -> Colour:
    red, green, blue = (round(a + (b - a) * weight) for a, b in zip(source, target, strict=True))
    return red, green, blue
