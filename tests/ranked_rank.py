"""One rank of two that make clips: `python ranked_rank.py RANK STORE PEER FOLDER SHARING`, where STORE and PEER are
descriptors.

On rank 1 clips of a certain seed fail, and large ones do not fit. Rank 0 writes what became of its requests.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from small_pipelines.clips import HEIGHT, WIDTH, Made, make, request

from streamsynth.engine.diffusion.clip import Clip
from streamsynth.engine.diffusion.engine import ClipEngine
from streamsynth.engine.parallel.layout import Layout
from streamsynth.engine.parallel.seat import FollowingSeat, LeadingSeat
from streamsynth.models.diffusers.abilities import Bounds
from streamsynth.models.diffusers.loading import load_pipeline
from streamsynth.models.diffusers.model import PipelineClip, PipelineModel
from streamsynth.models.diffusers.placing import Placement
from streamsynth.models.diffusers.ranked import open_ranked
from streamsynth.video import Size

BAD_SEED = 666
FITTING = 5 * WIDTH * HEIGHT


class Worse(PipelineModel):
    """As rank 1 has it."""

    def advance(self, clips: Sequence[Clip]) -> None:
        super().advance(clips)
        for clip in clips:
            assert isinstance(clip, PipelineClip)
            if clip.request.seed == BAD_SEED and clip.step == 2:
                clip.error = RuntimeError("a kernel failed " + "ö" * 2000)
            elif (clip.request.num_frames or 0) * clip.request.width * clip.request.height > FITTING:
                clip.error = torch.OutOfMemoryError("out of memory")


def told(made: Made) -> dict[str, Any]:
    return {
        "error": None if made.error is None else made.error.to_wire(),
        "pictures": made.pictures.flatten().tolist() if made.pieces else None,
        "steps": [progress.step for progress in made.progress],
    }


def main(rank: int, store: str, peer: str, folder: str, sharing: Literal["sharded", "local"]) -> None:
    torch.set_num_threads(1)
    socket_to_peer, path = socket.socket(fileno=int(peer)), f"/proc/self/fd/{store}"
    seat = FollowingSeat(1, 2, path, socket_to_peer) if rank else LeadingSeat(path, [socket_to_peer])
    kind = Worse if rank else PipelineModel
    bounds = Bounds(sizes=(Size(width=WIDTH, height=HEIGHT),), max_frames=9, max_steps=20)
    opened = open_ranked(
        seat,
        Layout.infer(2),
        Placement(offload=True, sharing=sharing),
        torch.device("cpu"),
        lambda _, __: load_pipeline(Path(folder), dtype=torch.float32),
        lambda pipeline: kind(pipeline, bounds, device=torch.device("cpu"), capacity=1),
    )
    if not isinstance(opened, ClipEngine):
        opened.follow()
        return
    found: dict[str, Any] = {"envelope": opened.counters()["envelope_pixels"]}
    seeds = (1, BAD_SEED, 3, 4)
    made = make(opened, *(request("wan", seed=seed, num_frames=5, steps=4) for seed in seeds))
    found |= {str(seed): told(each) for seed, each in zip(seeds, made, strict=True)}
    opened.close()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:5], "local" if sys.argv[5] == "local" else "sharded")
