"""Listens to texts spoken in pieces, each behind those before it and each alone. See README.md for the command.

The reference is the teacher, which reads each text in one go: its pieces are cut out of that, in its own pauses.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray

from train_tiny_speech.code_store import CodedUtterance
from train_tiny_speech.codec import load_codec
from train_tiny_speech.documents import cut_up, sentences_of
from train_tiny_speech.evaluate import sound
from train_tiny_speech.frames import FRAME_SAMPLES, SAMPLE_RATE
from train_tiny_speech.joints import compare, steps
from train_tiny_speech.render_teacher import Teacher
from train_tiny_speech.sampling import Sampling, speak_chains
from train_tiny_speech.sound_quality import Audio
from train_tiny_speech.talker_files import load_talker
from train_tiny_speech.text_tokens import phoneme_prompt
from train_tiny_speech.word_errors import Listener, error_rate, packaged_whisper

_AT_ONCE = 20
_PAUSE = np.zeros(SAMPLE_RATE // 5, np.float32)
_EARLIER = {"alone": 0, "behind one": 1, "behind all": 100}

Pieces = list[CodedUtterance]
Spoken = list[list[Audio]]


def read_in_pieces(teacher: Teacher, texts: Sequence[str], *, clauses: bool) -> list[Pieces]:
    """Texts that the teacher reads with a rest inside, cut there; the codes of a piece are its frames' samples."""
    cut = []
    for seed, text in enumerate(texts):
        if (spoken := teacher.speak(text, speed=1.0, seed=seed)) is not None:
            frames = spoken.samples.reshape(-1, FRAME_SAMPLES)
            whole = CodedUtterance(text, spoken.phonemes, frames, spoken.cuts)
            cut.append(cut_up(whole, whole.cuts) if clauses else sentences_of(whole))
    return [pieces for pieces in cut if len(pieces) > 1]


def systems(arguments: argparse.Namespace, teacher: Teacher, texts: list[Pieces]) -> Iterator[tuple[str, Spoken]]:
    yield "teacher in one go", [[_scaled(piece.codes.ravel()) for piece in pieces] for pieces in texts]
    said = [[teacher.speak(p.text, speed=1.0, seed=0, phonemes=p.phonemes) for p in pieces] for pieces in texts]
    yield "teacher, piece by piece", [[_scaled(u.samples) for u in some if u is not None] for some in said]
    talker, codec = load_talker(arguments.model / "talker"), load_codec(arguments.model / "codec")
    sampling = Sampling(guidance=arguments.guidance, temperature=arguments.temperature)
    prompts = [[phoneme_prompt(piece.phonemes) for piece in pieces] for pieces in texts]
    groups = [prompts[start : start + _AT_ONCE] for start in range(0, len(prompts), _AT_ONCE)]
    for name, earlier in _EARLIER.items():
        spoken = chain.from_iterable(speak_chains(talker, g, sampling, arguments.seed, earlier) for g in groups)
        yield f"talker, {name}", [[sound(codec, codes) for codes in pieces] for pieces in spoken]


def _scaled(samples: NDArray[np.int16]) -> Audio:
    return samples.astype(np.float32) / 32768


def _joined(pieces: Sequence[Audio]) -> Audio:
    return np.concatenate([part for piece in pieces for part in (piece, _PAUSE)])


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("faster_whisper").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder with codec/ and talker/")
    parser.add_argument("texts", type=Path, help="texts of up to 12 seconds, one a line")
    parser.add_argument("--clauses", action="store_true", help="cut at every pause, not only between sentences")
    parser.add_argument("--guidance", type=float, default=Sampling.guidance)
    parser.add_argument("--temperature", type=float, default=Sampling.temperature)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the audio")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    teacher, listener = Teacher(), Listener(packaged_whisper())
    texts = read_in_pieces(teacher, arguments.texts.read_text().splitlines(), clauses=arguments.clauses)
    reading = None
    for name, spoken in systems(arguments, teacher, texts):
        taken = [steps(pieces) for pieces in spoken]
        reading = reading or taken
        logging.info("%s: %s", name, compare(taken, reading))
        written = [" ".join(piece.text for piece in pieces) for pieces in texts]
        heard = [listener.compare(text, _joined(pieces)) for text, pieces in zip(written, spoken, strict=True)]
        errors, words = (sum(getattr(h, field) for h in heard) for field in ("errors", "words"))
        logging.info("  word errors %.2f%% (%d/%d) in %d texts", 100 * error_rate(heard), errors, words, len(heard))
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            for i, pieces in enumerate(spoken):
                soundfile.write(arguments.out / f"{name}-{i:02}.wav", _joined(pieces), SAMPLE_RATE)


if __name__ == "__main__":
    main()
