"""Measures teacher, codec and talker on held-out sentences: word errors and sound. See README.md for the command."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from transformers import MimiModel

from train_tiny_speech.codec import decode, encode, load_codec
from train_tiny_speech.frames import SAMPLE_RATE
from train_tiny_speech.lexicon import lexicon_prompt, read_lexicon
from train_tiny_speech.render_teacher import Teacher
from train_tiny_speech.sampling import Sampling, speak_chains
from train_tiny_speech.sound_quality import measure
from train_tiny_speech.speech_store import Utterance
from train_tiny_speech.talker_files import load_talker
from train_tiny_speech.text_tokens import character_prompt, phoneme_prompt
from train_tiny_speech.word_errors import Listener, error_rate, packaged_whisper

Audio = NDArray[np.float32]
_CHAINS_AT_ONCE = 25
_SYSTEMS = ["teacher", "codec", "phonemes", "characters", "lexicon"]


def teacher_speech(sentences: list[str]) -> list[Utterance]:
    teacher = Teacher()
    spoken = [teacher.speak(text, speed=1.0, seed=i) for i, text in enumerate(sentences)]
    return [u for u in spoken if u is not None]


def systems(arguments: argparse.Namespace, spoken: list[Utterance]) -> Iterator[tuple[str, list[Audio], bool]]:
    """Name, audio of each utterance, and whether it is time-aligned with the teacher's."""
    wanted = set(arguments.systems)
    if "teacher" in wanted:
        yield "teacher", [u.samples.astype(np.float32) / 32768 for u in spoken], True
    codec = load_codec(arguments.model / "codec")
    if "codec" in wanted:
        yield "codec", [decode(codec, encode(codec, [u.samples])[0]) for u in spoken], True
    prompts = {
        "phonemes": [phoneme_prompt(u.phonemes) for u in spoken],
        "characters": [character_prompt(u.text) for u in spoken],
    }
    if "lexicon" in wanted:
        lexicon = read_lexicon(arguments.model / "lexicon.tsv.gz")
        prompts["lexicon"] = [lexicon_prompt(u.text, lexicon) for u in spoken]
    for name in sorted(wanted & set(prompts)):
        talker = load_talker(arguments.model / "talker")
        order = sorted(range(len(spoken)), key=lambda i: len(prompts[name][i]))
        chains = [order[start : start + arguments.chain] for start in range(0, len(order), arguments.chain)]
        audio: list[Audio] = [np.zeros(0, np.float32)] * len(spoken)
        for start in range(0, len(chains), _CHAINS_AT_ONCE):
            some = chains[start : start + _CHAINS_AT_ONCE]
            sampling = Sampling(guidance=arguments.guidance, temperature=arguments.temperature)
            read = [[prompts[name][i] for i in sentences] for sentences in some]
            codes = speak_chains(talker, read, sampling, arguments.seed, arguments.chain)
            for i, utterance_codes in zip(chain.from_iterable(some), chain.from_iterable(codes), strict=True):
                audio[i] = sound(codec, utterance_codes)
        yield name, audio, False


def sound(codec: MimiModel, codes: NDArray[np.int16]) -> Audio:
    return decode(codec, codes) if len(codes) else np.zeros(2400, np.float32)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("faster_whisper").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder with codec/ and talker/")
    parser.add_argument("sentences", type=Path, help="held-out sentences, one a line")
    parser.add_argument("--systems", nargs="+", choices=_SYSTEMS, default=_SYSTEMS)
    parser.add_argument("--every", type=int, default=1, help="take every n-th sentence only")
    parser.add_argument("--guidance", type=float, default=Sampling.guidance)
    parser.add_argument("--temperature", type=float, default=Sampling.temperature)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--chain", type=int, default=1, help="speak this many sentences one behind another, with context"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--words", action=argparse.BooleanOptionalAction, default=True, help="listen with Whisper too")
    parser.add_argument("--out", type=Path, help="folder for the audio and what was heard")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sentences = [line for line in arguments.sentences.read_text().splitlines() if line.strip()]
    spoken = teacher_speech(sentences[:: arguments.every])
    reference = [u.samples.astype(np.float32) / 32768 for u in spoken]
    listener = Listener(packaged_whisper(), arguments.threads) if arguments.words else None
    for name, audio, aligned in systems(arguments, spoken):
        logging.info("%s: %s", name, measure(audio, reference if aligned else None))
        lengths = [len(a) / len(b) for a, b in zip(audio, reference, strict=True)]
        logging.info("  length against the teacher: %.2f to %.2f", min(lengths), max(lengths))
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            for i, samples in enumerate(audio[:20]):
                soundfile.write(arguments.out / f"{name}-{i:02}.wav", samples, SAMPLE_RATE)
        if listener:
            hearings = [listener.compare(u.text, a) for u, a in zip(spoken, audio, strict=True)]
            errors, words = (sum(getattr(h, field) for h in hearings) for field in ("errors", "words"))
            logging.info("  word errors %.2f%% (%d/%d)", 100 * error_rate(hearings), errors, words)
            if arguments.out:
                heard = [vars(h) for h in hearings if h.errors]
                (arguments.out / f"{name}.json").write_text(json.dumps(heard, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
