"""Speaks the corpus with the teacher voice (hibari, "heart"), in many processes. See README.md for the command."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from train_tiny_speech.cuts import AUDIBLE_LEVEL, LEAD_SILENCE, LEVEL_WINDOW, TAIL_SILENCE, find_cuts, levels
from train_tiny_speech.frames import FRAME_SAMPLES
from train_tiny_speech.speech_store import Utterance, hours, mark_finished, write_shard
from train_tiny_speech.spoken_texts import ReadingPlan, SpokenText
from train_tiny_speech.teacher_voice import TeacherVoice

_MAX_PHONEMES = 220
_MAX_FRAMES = 300
_UTTERANCES_PER_SHARD = 100


@dataclass(frozen=True)
class RenderJob:
    """Worker `index` of `workers` speaks every `workers`-th sentence until `deadline` (seconds since the epoch)."""

    corpus: Path
    out: Path
    index: int
    workers: int
    deadline: float
    again: bool


class Teacher:
    def __init__(self) -> None:
        self._voice = TeacherVoice()

    def phonemes(self, text: str) -> str:
        return self._voice.phonemes(text)

    def speak(self, text: str, *, speed: float, seed: int, phonemes: str | None = None) -> Utterance | None:
        """None for a text that the teacher cannot read in one breath of 12 seconds."""
        phonemes = self._voice.known(phonemes or self.phonemes(text))
        if not 0 < len(phonemes) <= _MAX_PHONEMES:
            return None
        speech = self._voice.speak(phonemes, speed=speed, seed=seed)
        span = audible_span(speech.samples)
        if span is None or len(span) > _MAX_FRAMES * FRAME_SAMPLES:
            return None
        samples = (faded(speech.samples, span).clip(-1, 1) * 32767).astype(np.int16)
        return Utterance(text, phonemes, samples, find_cuts(text, phonemes, speech.samples, speech.spans, span.start))


def audible_span(samples: NDArray[np.float32]) -> range | None:
    """What is audible with a short silence at both ends; None if nothing is."""
    audible = np.flatnonzero(levels(samples) > AUDIBLE_LEVEL)
    if len(audible) < 20:
        return None
    start = max(0, int(audible[0]) * LEVEL_WINDOW - LEAD_SILENCE)
    return range(start, min(len(samples), (int(audible[-1]) + 1) * LEVEL_WINDOW + TAIL_SILENCE))


def faded(samples: NDArray[np.float32], span: range) -> NDArray[np.float32]:
    """A part, faded at both ends, with zeros behind it to whole frames."""
    voice = samples[span.start : span.stop].copy()
    fade = np.linspace(0, 1, LEVEL_WINDOW, dtype=np.float32)
    voice[:LEVEL_WINDOW] *= fade
    voice[-LEVEL_WINDOW:] *= fade[::-1]
    return np.pad(voice, (0, -len(voice) % FRAME_SAMPLES))


def read_corpus(path: Path) -> list[SpokenText]:
    """Sentences, one a line, each perhaps with a tab and its phonemes."""
    return [SpokenText(*line.partition("\t")[::2]) for line in path.read_text().splitlines()]


def _texts(job: RenderJob) -> Iterator[tuple[int, SpokenText]]:
    """A worker's texts, numbered, over and over if asked to, each time joined anew."""
    corpus = read_corpus(job.corpus)
    sentences = corpus[job.index :: job.workers]
    numbers = count(job.index, job.workers)
    for turn in count() if job.again else range(1):
        rng = random.Random(f"{job.index} {turn}")
        if turn:
            rng.shuffle(sentences)
        yield from zip(numbers, ReadingPlan().texts(sentences, rng), strict=False)


def render_share(job: RenderJob) -> int:
    """Frames rendered by one worker."""
    os.nice(5)
    teacher = Teacher()
    speeds = np.random.default_rng(job.index)
    batch: list[Utterance] = []
    frames = shards = 0
    for seed, spoken in _texts(job):
        if time.time() > job.deadline:
            break
        speed = float(np.clip(speeds.normal(1.0, 0.04), 0.9, 1.1))
        utterance = teacher.speak(spoken.text, speed=speed, seed=seed, phonemes=spoken.phonemes or None)
        if utterance is None:
            continue
        batch.append(utterance)
        frames += utterance.frames
        if len(batch) == (10 if shards == 0 else _UTTERANCES_PER_SHARD):
            write_shard(job.out, f"shard-{shards:04}-{job.index:02}", batch)
            batch, shards = [], shards + 1
    if batch:
        write_shard(job.out, f"shard-{shards:04}-{job.index:02}", batch)
    return frames


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="sentences, one a line, each perhaps with a tab and its phonemes")
    parser.add_argument("out", type=Path, help="folder for the shards")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=3600, help="stop after this long, wherever the corpus stands")
    parser.add_argument("--again", action="store_true", help="start over where the corpus ends")
    arguments = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.time()
    workers = arguments.workers
    deadline = start + arguments.seconds
    again = arguments.again
    jobs = [RenderJob(arguments.corpus, arguments.out, i, workers, deadline, again) for i in range(workers)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        frames = sum(pool.imap_unordered(render_share, jobs))
    mark_finished(arguments.out)
    logging.info("%.2f hours of speech in %.0f s", hours(frames), time.time() - start)


if __name__ == "__main__":
    main()
