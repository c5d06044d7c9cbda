"""The embedded talker against the frames that its training recipe wrote down: greedy, one sentence, unguided."""

from __future__ import annotations

import json

import torch
from talker_batch import GREEDY, prompt

from streamsynth.engine.attention import PageMemory
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import FrameGang, Runner
from streamsynth.models.csm.weights import load_talker
from streamsynth.models.tiny_speech.places import weights_folder

PAGES, PAGE_SIZE = 40, 16


def test_greedy_frames_are_the_golden_ones() -> None:
    torch.set_num_threads(1)
    golden = json.loads((weights_folder() / "golden.json").read_text())
    talker = load_talker(weights_folder() / "talker")
    backbone = talker.config.backbone
    memory = PageMemory(
        layers=backbone.layers,
        pages=PAGES,
        page_size=PAGE_SIZE,
        kv_heads=backbone.kv_heads,
        head_dim=backbone.head_dim,
        like=talker.projector.weight,
    )
    planner = Planner(PagePool(PAGES), page_size=PAGE_SIZE, max_rows=1, max_tokens=64)
    runner = Runner(talker, memory)
    gang = FrameGang.of([prompt(golden["ids"], talker.config.codebooks)], GREEDY, PAGE_SIZE)
    frames: list[list[int]] = []
    while len(frames) < len(golden["greedy_frames"]):
        frames += [drawn.frame.tolist() for drawn in runner.step(planner.plan([gang]), {gang.rows[0]: gang})]
    assert frames == golden["greedy_frames"]
