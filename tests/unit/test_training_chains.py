"""The talker's training on chains: utterances cut in the silence of their pauses, segments packed behind another."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from train_tiny_speech.code_store import CodedUtterance, read_codes, write_codes
from train_tiny_speech.cuts import AUDIBLE_LEVEL, Cut, find_cuts
from train_tiny_speech.documents import ChainMix, PromptMix, Segment, cut_up, fitting, last_judged, sentences_of
from train_tiny_speech.frames import FRAME_SAMPLES
from train_tiny_speech.held_out import held_out_checks
from train_tiny_speech.render_teacher import Teacher
from train_tiny_speech.spoken_texts import ReadingPlan, SpokenText, with_other_mark
from train_tiny_speech.talker_batches import FixedSpeech, PackedBatch, PackedRows, pack_all
from train_tiny_speech.text_tokens import UNCONDITIONAL, character_prompt, phoneme_prompt


def utterance(seed: int = 0) -> CodedUtterance:
    codes = np.random.default_rng(seed).integers(1, 64, (60, 6)).astype(np.int16)
    cuts = (Cut(2, 20, 23), Cut(4, 40, 40))
    return CodedUtterance("Go home, stay here. Now sleep.", "ɡˌO hˈOm, stˈA hˈɪɹ. nˌW slˈip.", codes, cuts)


def following(batch: PackedBatch, position: int) -> torch.Tensor:
    return F.pad(batch.codes.flatten(0, 1), (0, 0, 0, 1))[position + 1]


def test_the_teacher_says_where_it_rests_and_each_piece_begins_and_ends_in_silence() -> None:
    text = "When the rain was over, we walked home; the river was high. Nobody spoke."
    spoken = Teacher().speak(text, speed=1.0, seed=0)
    assert spoken is not None
    words = text.split(" ")
    assert [words[cut.words - 1] for cut in spoken.cuts] == ["over,", "home;", "high."]
    for cut in spoken.cuts:
        assert 0 < cut.end <= cut.start < spoken.frames
        for frame in (cut.end, cut.start):
            around = spoken.samples[frame * FRAME_SAMPLES - 200 : frame * FRAME_SAMPLES + 200] / 32768
            assert np.sqrt((around**2).mean()) < AUDIBLE_LEVEL


def test_a_cut_stands_on_a_frame_within_the_pause_that_its_mark_is_spoken_in() -> None:
    samples = np.full(48000, 0.1, np.float32)
    for start, end in ((3000, 4800), (9600, 16800), (24000, 26400), (36000, 37200)):
        samples[start:end] = 0
    marks = {"a": (0, 9000), ",": (9000, 12000), " ": (12000, 18000), "b": (18000, 23000)}
    spans = [
        *marks.values(),
        (23000, 25000),
        (25000, 28000),
        (28000, 36000),
        (36000, 37000),
        (37000, 48000),
        (48000, 48000),
    ]
    long, short = find_cuts("a, b, c, d", "a, b, c, d", samples, spans, first=480)
    assert (long.words, long.end, long.start) == (1, 12, 15)
    assert (short.words, short.end, short.start) == (2, 26, 26)
    for cut, (quiet, audible) in ((long, (9600, 16800)), (short, (24000, 26400))):
        assert quiet < cut.end * FRAME_SAMPLES + 480 and cut.start * FRAME_SAMPLES + 480 < audible


def test_words_that_do_not_correspond_are_not_cut() -> None:
    assert find_cuts("a b, c", "a, c", np.zeros(24000, np.float32), [(0, 24000)] * 4, 0) == ()


def test_cuts_go_to_disk_and_back(tmp_path: Path) -> None:
    whole = [utterance(), CodedUtterance("Go.", "ɡˌO.", utterance().codes), utterance(1)]
    write_codes(tmp_path, "codes", whole)
    assert [u.cuts for u in read_codes(tmp_path / "codes.npz")] == [u.cuts for u in whole]


def test_pieces_have_their_words_and_frames_and_leave_out_the_middle_of_the_pause() -> None:
    whole = utterance()
    first, second, third = cut_up(whole, whole.cuts)
    assert (first.text, second.text, third.text) == ("Go home,", "stay here.", "Now sleep.")
    assert (first.phonemes, third.phonemes) == ("ɡˌO hˈOm,", "nˌW slˈip.")
    assert np.array_equal(
        np.concatenate([first.codes, second.codes, third.codes]), np.delete(whole.codes, range(20, 23), 0)
    )
    assert [u.text for u in sentences_of(whole)] == ["Go home, stay here.", "Now sleep."]


def test_each_segment_of_a_chain_ends_with_the_end_of_audio_and_positions_go_on() -> None:
    whole = utterance()
    chain = [Segment(character_prompt(u.text), u.codes) for u in cut_up(whole, whole.cuts)]
    (batch,) = pack_all([chain], 1, 128)
    used = int((batch.document[0] == 0).sum())
    assert used == sum(map(len, chain)) and (batch.document[0, used:] == -1).all()
    assert batch.position[0, :used].tolist() == list(range(used))
    predicting = set(batch.predicting[batch.predicting >= 0].tolist())
    expected, start = set(), 0
    for segment in chain:
        speech, end = start + len(segment.prompt), start + len(segment)
        assert batch.text[0, start:speech].tolist() == segment.prompt
        assert np.array_equal(batch.codes[0, speech:end].numpy(), segment.codes)
        assert following(batch, speech - 1).tolist() == segment.codes[0].tolist()
        assert not following(batch, end - 1).any()
        expected |= set(range(speech - 1, end))
        start = end
    assert predicting == expected


def test_context_is_not_judged() -> None:
    whole = utterance()
    chain = [Segment(phoneme_prompt(u.phonemes), u.codes) for u in cut_up(whole, whole.cuts)]
    (batch,) = pack_all([last_judged(chain)], 1, 128)
    judged = batch.predicting[batch.predicting >= 0]
    assert len(judged) == len(chain[-1].codes) + 1 and int(judged.min()) == sum(map(len, chain)) - len(judged)


def test_a_prompt_is_left_out_at_the_end_of_a_chain_only() -> None:
    rng, mix = np.random.default_rng(0), PromptMix(nothing=0.4)
    whole = utterance()
    documents = [mix.document(cut_up(whole, whole.cuts), rng) for _ in range(200)]
    left_out = [[segment.prompt == list(UNCONDITIONAL) for segment in document] for document in documents]
    assert not any(any(missing[:-1]) for missing in left_out)
    assert {len(missing) for missing in left_out if missing[-1]} == {1, 2, 3}


def test_all_segments_of_a_chain_are_spelled_or_all_pronounced() -> None:
    rng, whole = np.random.default_rng(0), utterance()
    for document in (PromptMix(0, 0.5, 0.5).document(cut_up(whole, whole.cuts), rng) for _ in range(20)):
        assert len({segment.prompt[1] for segment in document}) == 1


def test_a_document_loses_the_last_segments_that_do_not_fit() -> None:
    segments = [Segment([1, 2], np.ones((n, 6), np.int16)) for n in (10, 20, 30)]
    assert [len(fitting(segments, length)) for length in (11, 12, 33, 34, 65, 66)] == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("mix", "counts"), [(ChainMix(1, 0), {1}), (ChainMix(0, 1, 0), {2, 3}), (ChainMix(0, 0), {2, 3})]
)
def test_documents_are_sentences_alone_cut_utterances_or_several_utterances(mix: ChainMix, counts: set[int]) -> None:
    rng = np.random.default_rng(0)
    drawn = FixedSpeech([utterance(0), utterance(1)]).draw(rng)
    chains = [mix.pieces(drawn, rng) for _ in range(60)]
    assert {len(chain) for chain in chains} == counts
    if mix.cut:  # a sentence's end is always cut, a comma not
        assert {chain[0].text for chain in chains} == {"Go home,", "Go home, stay here."}
        assert all(a.text[-1] in ",." and b.text for chain in chains for a, b in pairwise(chain))


def test_rows_of_chains_are_filled() -> None:
    rows = PackedRows(FixedSpeech([utterance(seed) for seed in range(9)]), 4, 256, PromptMix(), ChainMix(), seed=0)
    batches = [batch for batch, _ in zip(rows, range(5), strict=False)]
    assert all(float((batch.document >= 0).float().mean()) > 0.85 for batch in batches)


def test_segments_are_held_out_with_their_context_and_without() -> None:
    checks = held_out_checks([utterance(seed) for seed in range(4)], 4, 256)
    judged = {name: sum(int((b.predicting >= 0).sum()) for b in batches) for name, batches in checks.items()}
    assert judged["cut at its pauses, with context"] == judged["cut at its pauses, without"] == 4 * (17 + 1 + 20 + 1)
    pair = "behind another utterance"
    assert judged[f"{pair}, with context"] == judged[f"{pair}, without"] > 0


def test_sentences_are_joined_each_once_and_some_commas_become_other_marks() -> None:
    sentences = [SpokenText(f"Word {i}, word.", f"a{i}, b.") for i in range(300)]
    texts = list(ReadingPlan(other_mark=0).texts(sentences, random.Random(0)))
    assert sorted(" ".join(t.text for t in texts).split()) == sorted(" ".join(s.text for s in sentences).split())
    joined = [t for t in texts if t.text.count(".") == 2]
    assert 0.3 < 2 * len(joined) / len(sentences) < 0.6 and all(t.phonemes.count(".") == 2 for t in joined)
    marked = {with_other_mark(SpokenText("Well, no.", "wˈɛl, nˈO."), random.Random(i)) for i in range(30)}
    assert marked == {
        SpokenText("Well; no.", "wˈɛl; nˈO."),
        SpokenText("Well: no.", "wˈɛl: nˈO."),
        SpokenText("Well — no.", "wˈɛl — nˈO."),
    }
