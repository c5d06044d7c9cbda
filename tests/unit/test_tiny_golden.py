"""The embedded talker: the frames that its training recipe wrote down, greedy and unguided; and what a sentence goes on
from."""

from __future__ import annotations

import json

import pytest
import torch
from talker_batch import GREEDY, prompt

from streamsynth.config.unset import UNSET
from streamsynth.engine.attention import PageMemory
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import FrameGang, Runner
from streamsynth.models.csm.weights import load_talker
from streamsynth.models.tiny_speech.pipeline import TINY_SPEECH
from streamsynth.models.tiny_speech.places import weights_folder
from streamsynth.models.tiny_speech.talker import TinyTalker
from streamsynth.speech import SpeechRequest

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


@pytest.mark.parametrize("context", [False, True])
def test_with_context_both_rows_of_a_sentence_go_on_from_the_words_and_frames_of_the_one_before(context: bool) -> None:
    declared = {name: value for name, value in TINY_SPEECH.stage("talker").options.items() if value is not UNSET}
    assert declared["context"] is True
    talker = TinyTalker(**declared | {"alphabet": "characters", "context": context})
    stream = talker.open(SpeechRequest(voice="tiny", seed=1).to_wire())
    stream.push("Yes. No.")
    stream.finish()
    found: list[FrameGang] = []
    while len(found) < 2:
        talker.step([stream])
        if stream.gang is not None and stream.gang not in found:
            found.append(stream.gang)
    stream.close()
    first, second = found
    said = [*first.prompts[0].tolist(), *(frame.tolist() for frame in first.fed[:-1])] if context else []
    for whole in second.prompts:
        assert whole[: len(said)].tolist() == said
        assert whole[len(said)].tolist() == first.prompts[0][0].tolist()
    assert second.prompts[1][len(said) :].tolist() == first.prompts[1].tolist()
