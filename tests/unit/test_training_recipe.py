"""Every step of the tiny-speech recipe runs, learns, and leaves alone what it must not touch."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from importlib.resources import files
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from train_tiny_speech.code_store import CodedUtterance, write_codes
from train_tiny_speech.codec import CodeEmbedding, decode_embeddings, encode
from train_tiny_speech.corpus_sources import lexicon_words
from train_tiny_speech.decoder_polish import DecoderPolish, PolishSettings
from train_tiny_speech.discriminators import Discriminators
from train_tiny_speech.documents import ChainMix, PromptMix
from train_tiny_speech.frames import FRAME_SAMPLES
from train_tiny_speech.lexicon import build, lexicon_prompt, read_lexicon, write_lexicon
from train_tiny_speech.render_teacher import Teacher
from train_tiny_speech.sampling import Sampling, speak
from train_tiny_speech.sentences import is_readable, sentences
from train_tiny_speech.sound_quality import harmonics_to_noise, log_spectral_distance, striping
from train_tiny_speech.speech_bank import SpeechBank, Window
from train_tiny_speech.speech_store import ShardReader, Utterance, read_shard, write_shard
from train_tiny_speech.spoken_numbers import cardinal, ordinal, year
from train_tiny_speech.talker_batches import FixedSpeech, GrowingSpeech, PackedRows
from train_tiny_speech.talker_files import load_talker, new_talker, save_talker
from train_tiny_speech.talker_training import TalkerSettings, TalkerTraining
from train_tiny_speech.templates import assistant_sentence
from train_tiny_speech.text_tokens import UNCONDITIONAL, character_prompt, mixed_prompt, phoneme_prompt, vocabulary
from train_tiny_speech.word_errors import word_errors
from transformers import CsmConfig, CsmForConditionalGeneration, MimiConfig, MimiModel

ALONE = ChainMix(alone=1, cut=0)


def small_codec() -> MimiModel:
    torch.manual_seed(0)
    config = MimiConfig(
        sampling_rate=24000, hidden_size=32, num_filters=4, num_residual_layers=2, upsampling_ratios=[8, 5, 4, 3],
        codebook_size=64, codebook_dim=16, vector_quantization_hidden_dimension=16, num_quantizers=6,
        num_semantic_quantizers=1, upsample_groups=32, num_hidden_layers=2, intermediate_size=64,
        num_attention_heads=2, num_key_value_heads=2, sliding_window=64, layer_scale_initial_scale=0.1,
        pad_mode="constant", use_conv_shortcut=False,
    )  # fmt: skip
    codec = MimiModel(config).eval()
    for name, buffer in codec.named_buffers():
        if name.endswith("embed_sum"):
            buffer.normal_()
    return codec


def small_talker() -> CsmForConditionalGeneration:
    torch.manual_seed(0)
    depth = {
        "num_codebooks": 6, "backbone_hidden_size": 64, "vocab_size": 72, "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 7,
    }  # fmt: skip
    config = CsmConfig(
        num_codebooks=6, vocab_size=72, text_vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=1, num_key_value_heads=1, head_dim=64, max_position_embeddings=512, pad_token_id=0,
        bos_token_id=1, audio_token_id=6, audio_eos_token_id=7, codebook_pad_token_id=71, codebook_eos_token_id=0,
        tie_codebooks_embeddings=True, depth_decoder_config=depth,
    )  # fmt: skip
    return new_talker(config)


def coded_speech() -> list[CodedUtterance]:
    codes = np.random.default_rng(0).integers(1, 64, (60, 6)).astype(np.int16)
    return [
        CodedUtterance("Go home.", "ɡˌO hˈOm.", codes[:20]),
        CodedUtterance("Stay here.", "stˈA hˈɪɹ.", codes[20:]),
    ]


def hum(frames: int, seed: int = 0) -> Utterance:
    rng = np.random.default_rng(seed)
    time = np.arange(frames * FRAME_SAMPLES) / 24000
    wave = sum(np.sin(2 * np.pi * 200 * k * time) / k for k in range(1, 20)) * 0.1 + rng.normal(0, 0.005, len(time))
    return Utterance("A hum.", "hˈʌm.", (wave * 32767).clip(-32767, 32767).astype(np.int16))


def test_shards_come_back_as_they_were_written_and_each_is_read_once(tmp_path: Path) -> None:
    utterances = [hum(3), hum(5, seed=1)]
    write_shard(tmp_path, "shard-0", utterances)
    reader = ShardReader(tmp_path)
    (path,) = reader.unread(10)
    for written, read in zip(utterances, read_shard(path), strict=True):
        assert read.text == written.text and read.phonemes == written.phonemes
        assert np.array_equal(read.samples, written.samples)
    assert reader.unread(10) == []


def test_the_training_decoder_gives_what_mimi_decode_gives() -> None:
    codec = small_codec()
    codes = torch.randint(0, 64, (2, 70, 6))
    expected = codec.decode(codes.transpose(1, 2)).audio_values[:, 0]
    assert torch.allclose(decode_embeddings(codec, CodeEmbedding(codec)(codes)), expected, rtol=1e-4, atol=1e-4)


def test_polishing_changes_the_decoder_and_nothing_before_it() -> None:
    codec = small_codec()
    before = {name: value.clone() for name, value in codec.state_dict().items()}
    bank = SpeechBank(200, 6, torch.device("cpu"))
    utterances = [hum(40, seed) for seed in range(3)]
    bank.add(utterances, encode(codec, [u.samples for u in utterances]))
    settings = PolishSettings(batch=2, window=Window(12, 8), learning_rate=2e-3, warmup_steps=1, average_decay=0.5)
    training = DecoderPolish(codec, Discriminators(width=0.125), bank, settings)
    rng = np.random.default_rng(0)
    mel = [float(training.step(bank.draw(rng, 2, settings.window), 0.0).mel) for _ in range(8)]
    assert np.mean(mel[-3:]) < np.mean(mel[:3])
    for name, value in training.averaged().state_dict().items():
        frozen = not name.startswith(("decoder.", "decoder_transformer.", "upsample."))
        assert torch.equal(value, before[name]) == frozen, name


@pytest.mark.parametrize("opening_share", [0.0, 1.0])
def test_windows_stay_inside_an_utterance_and_are_judged_with_context(opening_share: float) -> None:
    bank = SpeechBank(200, 6, torch.device("cpu"))
    utterances = [hum(20), hum(50), hum(60)]
    bank.add(utterances, [np.full((u.frames, 6), i, np.int16) for i, u in enumerate(utterances)])
    window = Window(frames=30, judged=20)
    draw = bank.draw(np.random.default_rng(0), 64, window, opening_share)
    codes, real = bank.window(draw, window)
    assert (codes == codes[:, :1]).all() and set(codes[:, 0, 0].tolist()) == {1, 2}
    assert real.shape == (64, 20 * FRAME_SAMPLES)
    starts_utterance = torch.isin(draw[0], torch.tensor([20, 70]))
    assert torch.equal(draw[1] == 0, starts_utterance)


def test_packed_rows_hold_whole_utterances_whose_last_target_is_the_end_of_audio() -> None:
    speech = coded_speech()
    (batch,) = islice(PackedRows(FixedSpeech(speech), 2, 128, PromptMix(0, 1, 0), ALONE, seed=0), 1)
    following = F.pad(batch.codes.flatten(0, 1), (0, 0, 0, 1))[batch.predicting.long() + 1]
    for document in range(int(batch.document.max()) + 1):
        row, columns = (int((batch.document == document).nonzero()[0, 0]), (batch.document == document).nonzero()[:, 1])
        text, codes = batch.text[row, columns], batch.codes[row, columns]
        utterance = speech[0] if torch.equal(codes[text == 0], torch.from_numpy(speech[0].codes)) else speech[1]
        assert text[text != 0].tolist() == character_prompt(utterance.text)
        assert torch.equal(codes[text == 0], torch.from_numpy(utterance.codes)) and not codes[text != 0].any()
        assert batch.position[row, columns].tolist() == list(range(len(columns)))
        ends = following[batch.predicting == row * 128 + int(columns[-1])]
        assert not ends.any()
        firsts = following[batch.predicting == row * 128 + int(columns[text != 0][-1])]
        assert (firsts == torch.from_numpy(utterance.codes[0])).all()


def test_speech_that_is_still_being_coded_is_drawn_as_it_comes(tmp_path: Path) -> None:
    known = coded_speech()[0]
    write_codes(tmp_path, "codes-00000", [known])
    drawn = GrowingSpeech(tmp_path, look_every=0.0).draw(np.random.default_rng(0))
    assert {next(drawn).text for _ in range(5)} == {known.text}
    write_codes(tmp_path, "codes-00001", [CodedUtterance("New.", "nˈu.", known.codes)])
    assert {next(drawn).text for _ in range(30)} == {known.text, "New."}


def test_the_talker_learns_and_goes_to_disk_and_back(tmp_path: Path) -> None:
    talker = small_talker()
    settings = TalkerSettings(learning_rate=3e-3, dropout=0.0, wrong_frames=0.0, warmup_steps=1, average_decay=0.5)
    batches = list(islice(PackedRows(FixedSpeech(coded_speech()), 2, 128, PromptMix(), ALONE, seed=0), 10))
    training = TalkerTraining(talker, batches[0], settings, compiled=False)
    losses = [float(training.step(batch, 0.0).first) for batch in batches]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.2
    save_talker(training.averaged(), tmp_path)
    restored = load_talker(tmp_path).state_dict()
    for name, value in talker.state_dict().items():
        assert torch.allclose(restored[name], value, atol=2e-3), name
    spoken = speak(talker, [character_prompt("Go."), phoneme_prompt("ɡˌO.")], Sampling(top_k=8, max_frames=4), seed=0)
    assert [c.shape[1] for c in spoken] == [6, 6] and all(len(c) <= 4 for c in spoken)


@torch.no_grad()
def test_packed_training_sees_what_transformers_sees_of_each_utterance_alone() -> None:
    talker = small_talker().eval()
    rows = PackedRows(FixedSpeech(coded_speech()), 1, 128, PromptMix(0, 1, 0), ALONE, seed=0)
    (batch,) = islice(rows, 1)
    last = batch.document[0] == batch.document.max()
    prompt, frames = batch.text[0, last].long(), batch.codes[0, last].long()
    text = talker.embed_text_tokens(prompt[prompt != 0])
    audio = talker.backbone_model.embed_tokens(frames[prompt == 0][None])[0]
    states = talker.backbone_model(inputs_embeds=torch.cat([text, audio])[None]).last_hidden_state[0, len(text) - 1 :]
    predicting = batch.predicting[batch.predicting >= 0]
    predicting = predicting[last[predicting.long()]]
    within = batch.position[0, predicting.long()].long() - (len(text) - 1)
    targets = F.pad(frames[prompt == 0], (0, 0, 0, 1))[within, 0]
    expected = F.cross_entropy(talker.lm_head(states)[within], targets)
    training = TalkerTraining(talker, batch, TalkerSettings(), compiled=False)
    filled = F.pad(predicting, (0, 7), value=-1)
    assert float(training.evaluate([replace(batch, predicting=filled)]).first) == pytest.approx(
        float(expected), abs=1e-4
    )


def test_a_prompt_marks_every_change_between_spelling_and_pronunciation() -> None:
    words, pronunciations = ["Go", "home."], ["ɡˌO", "hˈOm."]
    mixed = mixed_prompt(words, pronunciations, [False, True])
    ids = vocabulary()["chars"], vocabulary()["phonemes"]
    spelled, pronounced = ([table[c] for c in word] for table, word in zip(ids, ("go", "hˈOm."), strict=True))
    assert mixed == [1, 4, *spelled, 8, 3, *pronounced, 2]
    assert mixed_prompt(words, pronunciations, [False, False]) == character_prompt("Go home.")
    assert mixed_prompt(words, pronunciations, [True, True]) == phoneme_prompt("ɡˌO hˈOm.")
    assert UNCONDITIONAL == (1, 5, 2)


def test_a_lexicon_holds_words_that_always_sound_the_same_and_prompts_pronounce_those(tmp_path: Path) -> None:
    lines = ["Go home, now.\tɡˌO hˈOm, nˈW.", "Go to Rome.\tɡˌO tə ɹˈOm.", "I go home, to rest.\tI ɡˌO hˈOm, tʊ ɹˈɛst."]
    lexicon = build(lines, curated={"rest"})
    assert lexicon == {"go": "ɡˌO", "home": "hˈOm", "rest": "ɹˈɛst"}
    write_lexicon(tmp_path / "lexicon", lexicon)
    assert read_lexicon(tmp_path / "lexicon") == lexicon
    words, pronunciations = ["Home,", "to", "rest!"], ["hˈOm,", "", "ɹˈɛst!"]
    assert lexicon_prompt("Home, to rest!", lexicon) == mixed_prompt(words, pronunciations, [True, False, True])


def test_the_vocabulary_is_the_published_one() -> None:
    published = files("streamsynth.models.tiny_speech") / "weights" / "vocab.json"
    assert json.loads(published.read_text()) == vocabulary()


def test_sentences_are_cut_cleaned_and_only_kept_if_they_can_be_read_aloud() -> None:
    text = (
        "Mr. Smith (a neighbour) came -- \u201cat last\u201d. He paid 5 dollars. The NATO talks ended. So it goes on!"
    )
    assert list(sentences(text)) == ["Mister Smith, a neighbour, came, at last.", "So it goes on!"]
    assert all(is_readable(assistant_sentence(random.Random(i)), (2, 30)) for i in range(200))
    assert "spelling" in lexicon_words()


def test_numbers_are_said_as_words() -> None:
    assert [cardinal(n) for n in (0, 21, 305, 12_040)] == [
        "zero",
        "twenty-one",
        "three hundred five",
        "twelve thousand forty",
    ]
    assert [ordinal(n) for n in (1, 12, 20, 33)] == ["first", "twelfth", "twentieth", "thirty-third"]
    assert [year(n) for n in (1905, 1800, 2007, 2026)] == [
        "nineteen oh five", "eighteen hundred", "two thousand seven", "twenty twenty-six"
    ]  # fmt: skip


def test_word_errors_ignore_how_a_word_is_written() -> None:
    assert word_errors("That costs four dollars and forty-one cents.", "That costs $4.41.") == 0
    assert word_errors("The grey cat sat on a far-off shore.", "the gray cat sat on a faroff shore") == 0
    assert word_errors("One two three.", "One too three four.") == 2


def test_noise_lowers_harmonicity_and_raises_spectral_distance() -> None:
    clean = hum(40).samples.astype(np.float32) / 32768
    noisy = clean + np.random.default_rng(1).normal(0, 0.05, len(clean)).astype(np.float32)
    assert np.nanmedian(harmonics_to_noise(clean)) > np.nanmedian(harmonics_to_noise(noisy)) + 5
    assert np.median(log_spectral_distance(clean, clean)) == 0
    assert np.median(log_spectral_distance(noisy, clean)) > 3


def test_a_level_that_beats_with_the_frames_shows_as_striping() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 400 * FRAME_SAMPLES).astype(np.float32)
    beat = 1 + 0.5 * np.sin(2 * np.pi * np.arange(len(noise)) / FRAME_SAMPLES).astype(np.float32)
    assert striping(noise * beat) > striping(noise) + 3


def test_the_teacher_speaks_whole_frames_between_short_silences() -> None:
    utterance = Teacher().speak("Good morning.", speed=1.0, seed=0)
    assert utterance is not None and len(utterance.samples) % FRAME_SAMPLES == 0
    assert 15 < utterance.frames < 50 and utterance.phonemes.startswith("ɡ")
    assert np.abs(utterance.samples[:600]).max() < 1000 < np.abs(utterance.samples).max()
