"""How the tiny-speech recipe listens to context: prompts spoken behind others, and the joints between pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_training_recipe import small_talker
from train_tiny_speech.documents import Segment
from train_tiny_speech.evaluate_context import read_in_pieces
from train_tiny_speech.frames import FRAME_SAMPLES
from train_tiny_speech.joints import compare, steps
from train_tiny_speech.render_teacher import Teacher
from train_tiny_speech.sampling import Sampling, speak, speak_chains
from train_tiny_speech.text_tokens import UNCONDITIONAL, phoneme_prompt

GREEDY = Sampling(top_k=1, guidance=2.0, max_frames=5)
WORDS = [phoneme_prompt(text) for text in ("ɡˌO hˈOm.", "stˈA hˈɪɹ nˈW.", "slˈip.")]


@torch.no_grad()
def test_a_prompt_is_spoken_behind_the_prompts_and_frames_before_it_and_so_is_its_unguided_row() -> None:
    talker = small_talker().eval()
    codes = np.random.default_rng(0).integers(1, 64, (9, 6)).astype(np.int16)
    said = [Segment(WORDS[0], codes[:3]), Segment(WORDS[1], codes[3:])]
    alone, behind = speak(talker, [WORDS[2], WORDS[2]], GREEDY, seed=0, said=[[], said])
    assert np.array_equal(alone, speak(talker, [WORDS[2]], GREEDY, seed=0)[0])

    def logits(end: list[int] | tuple[int, ...]) -> torch.Tensor:
        parts = []
        for prompt, frames in [*((s.prompt, s.codes) for s in said), (end, behind[:2])]:
            parts += [
                talker.embed_text_tokens(torch.tensor(prompt)),
                talker.backbone_model.embed_tokens(torch.from_numpy(frames.astype(np.int64))[None])[0],
            ]
        return talker.lm_head(talker.backbone_model(inputs_embeds=torch.cat(parts)[None]).last_hidden_state[0, -1])

    prompted, unprompted = logits(WORDS[2]), logits(UNCONDITIONAL)
    assert int((2 * prompted - unprompted).argmax()) == behind[2][0]


def test_a_chain_goes_on_from_as_many_segments_as_are_asked_for_and_have_room() -> None:
    talker = small_talker().eval()
    chain, long = WORDS, phoneme_prompt("a" * 166)
    alone, behind_one, behind_all = (speak_chains(talker, [chain], GREEDY, 0, earlier)[0] for earlier in (0, 1, 9))
    assert all(np.array_equal(a, speak(talker, [p], GREEDY, 0)[0]) for a, p in zip(alone, chain, strict=True))
    said = [Segment(p, c) for p, c in zip(chain, behind_all, strict=True)]
    assert np.array_equal(behind_all[2], speak(talker, [chain[2]], GREEDY, 0, [said[:2]])[0])
    said = [Segment(p, c) for p, c in zip(chain, behind_one, strict=True)]
    assert np.array_equal(behind_one[2], speak(talker, [chain[2]], GREEDY, 0, [said[1:2]])[0])
    crowded = speak_chains(talker, [[*chain, long]], GREEDY, 0, 9)[0]
    assert np.array_equal(crowded[3], speak(talker, [long], GREEDY, 0)[0])


def test_a_step_of_pitch_and_level_is_found_where_it_is() -> None:
    time = np.arange(20 * FRAME_SAMPLES) / 24000

    def hum(hertz: float, loud: float) -> np.ndarray:
        wave = sum(np.sin(2 * np.pi * hertz * k * time) / k for k in range(1, 15))
        return (wave * loud).astype(np.float32)

    found = steps([hum(200, 0.1), hum(300, 0.05), hum(200, 0.05)])
    assert found == pytest.approx(np.array([[7.02, -6.02], [-7.02, 0.0]]), abs=0.3)
    silent = steps([hum(200, 0.1), np.zeros(FRAME_SAMPLES, np.float32)])
    judged = compare([found, silent], [found + 1.0, silent])
    assert judged.joints == 2 and judged.pitch_apart == pytest.approx(1.0) and judged.level_apart == pytest.approx(1.0)


def test_the_pieces_of_a_text_are_all_its_words_and_one_that_the_teacher_does_not_part_is_left_out() -> None:
    texts = ["We walked home. It rained, and the river was high.", "Nobody spoke."]
    clauses, sentences = (read_in_pieces(Teacher(), texts, clauses=clauses) for clauses in (True, False))
    assert [[piece.text for piece in pieces] for pieces in clauses] == [
        ["We walked home.", "It rained,", "and the river was high."]
    ]
    assert [[piece.text for piece in pieces] for pieces in sentences] == [
        ["We walked home.", "It rained, and the river was high."]
    ]
    assert all(piece.codes.shape[1] == FRAME_SAMPLES for pieces in clauses for piece in pieces)
