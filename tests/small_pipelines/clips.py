"""A folder for each small pipeline, and a clip made of it through the engine or by the pipeline itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from diffusers import DiffusionPipeline

from small_pipelines import images, videos
from streamsynth.engine.diffusion.engine import ClipEngine, ClipStream
from streamsynth.engine.stream import Emission
from streamsynth.errors import StreamSynthError
from streamsynth.interactions.messages import Progress
from streamsynth.video import VideoRequest

WIDTH, HEIGHT, STEPS = 64, 32, 3

Pictures = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Family:
    """`direct` are arguments of the pipeline's own call that a request does not have. `left_out`: of the steps, by what
    begins with a picture."""

    build: Callable[[], DiffusionPipeline]
    frames: int = 1
    direct: dict[str, Any] = field(default_factory=dict)
    guided: bool = True
    guidance: str = "guidance_scale"
    picture: bool = False
    sized: bool = True
    left_out: float = 0.0

    @property
    def asked_steps(self) -> int:
        """So that STEPS are made."""
        return round(STEPS / (1 - self.left_out))


FAMILIES: dict[str, Family] = {
    "wan": Family(videos.wan, 9),
    "wan-image-to-video": Family(videos.wan_image_to_video, 9, picture=True),
    "ltx": Family(videos.ltx, 9),
    "hunyuan-video": Family(videos.hunyuan_video, 9, guided=False),
    "cogvideox": Family(videos.cogvideox, 9),
    "sdxl": Family(images.sdxl),
    "sdxl-image-to-image": Family(images.sdxl_image_to_image, picture=True, sized=False, left_out=0.7),
    "sd3": Family(images.sd3),
    "flux": Family(images.flux, guided=False),
    "qwen-image": Family(images.qwen_image, guidance="true_cfg_scale"),
    "z-image": Family(images.z_image),
    "pixart-sigma": Family(images.pixart, direct={"use_resolution_binning": False}),
    "sana": Family(images.sana, direct={"use_resolution_binning": False}),
}


def save(name: str, folder: Path) -> Path:
    FAMILIES[name].build().save_pretrained(folder)
    return folder


def options(folder: Path, **changed: Any) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "device": "cpu",
        "dtype": "float32",
        "sizes": [f"{WIDTH}x{HEIGHT}"],
        "max_frames": 9,
        "max_steps": 20,
        "max_requests": 1,
        **changed,
    }


def request(name: str, prompt: str = "a red fox", seed: int = 7, **changed: Any) -> VideoRequest:
    family = FAMILIES[name]
    fields: dict[str, Any] = {
        "prompt": prompt,
        "width": WIDTH,
        "height": HEIGHT,
        "num_frames": family.frames,
        "seed": seed,
        "steps": family.asked_steps,
        "guidance": 3.5,
        "negative_prompt": "blue" if family.guided else None,
    }
    return VideoRequest(**{**fields, **changed})


def called_directly(name: str, folder: Path, asked: VideoRequest, picture: Any = None) -> Pictures:
    """What diffusers makes of it, as uint8."""
    family = FAMILIES[name]
    pipeline = DiffusionPipeline.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    arguments = {
        "prompt": asked.prompt,
        **({"width": asked.width, "height": asked.height} if family.sized else {}),
        "num_inference_steps": asked.steps,
        family.guidance: asked.guidance,
        "generator": torch.Generator().manual_seed(asked.seed or 0),
        "output_type": "np",
        "return_dict": False,
        **family.direct,
    }
    if asked.negative_prompt is not None:
        arguments["negative_prompt"] = asked.negative_prompt
    if asked.num_frames and family.frames > 1:
        arguments["num_frames"] = asked.num_frames
    if picture is not None:
        arguments["image"] = picture
    made = np.asarray(pipeline(**arguments)[0])
    return ((made[0] if made.ndim == 5 else made) * 255).round().astype(np.uint8)


@dataclass
class Made:
    """What came of one request, in order."""

    pieces: list[Emission] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    error: StreamSynthError | None = None

    @property
    def pictures(self) -> Pictures:
        return np.concatenate([piece.media for piece in self.pieces])

    @property
    def ended(self) -> bool:
        return self.error is not None or (bool(self.pieces) and self.pieces[-1].final)

    def take(self, made: Emission | StreamSynthError) -> None:
        if isinstance(made, StreamSynthError):
            self.error = made
            return
        self.progress += [notice for notice in made.notices if isinstance(notice, Progress)]
        if len(made.media):
            self.pieces.append(made)


def step(engine: ClipEngine, running: dict[ClipStream, Made]) -> None:
    """One step over those that could go on; what ends is closed and leaves `running`."""
    asked = [stream for stream in running if stream.wake_at() is not None]
    for stream, made in engine.step(asked).made:
        assert isinstance(stream, ClipStream)
        running[stream].take(made)
    for stream in [stream for stream, made in running.items() if made.ended]:
        del running[stream]
        stream.close()


def make(engine: ClipEngine, *asked: VideoRequest) -> list[Made]:
    """All of them to their ends."""
    made = [Made() for _ in asked]
    running = {engine.open(each.to_wire()): result for each, result in zip(asked, made, strict=True)}
    while running:
        step(engine, running)
    return made
