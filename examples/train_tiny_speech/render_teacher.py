"""Speaks the corpus with the teacher voice (hibari, "heart"), in many processes. See README.md for the command."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from train_tiny_speech.frames import FRAME_SAMPLES, SAMPLE_RATE
from train_tiny_speech.speech_store import Utterance, hours, mark_finished, write_shard

_LEAD_SILENCE = SAMPLE_RATE // 20
_TAIL_SILENCE = SAMPLE_RATE // 10
_LEVEL_WINDOW = SAMPLE_RATE // 100
_AUDIBLE_LEVEL = 0.004
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


class Teacher:
    def __init__(self) -> None:
        from hibari import Hibari

        self._voice = Hibari(threads=1)

    def phonemes(self, text: str) -> str:
        return " ".join(self._voice.phonemize(text))

    def speak(self, text: str, *, speed: float, seed: int, phonemes: str | None = None) -> Utterance | None:
        """None for a text that the teacher cannot read in one breath of 12 seconds."""
        phonemes = phonemes or self.phonemes(text)
        if not 0 < len(phonemes) <= _MAX_PHONEMES:
            return None
        samples = trimmed(self._voice.from_phonemes(phonemes, speed=speed, seed=seed))
        if samples is None or len(samples) > _MAX_FRAMES * FRAME_SAMPLES:
            return None
        return Utterance(text, phonemes, (samples.clip(-1, 1) * 32767).astype(np.int16))


def trimmed(samples: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """A short silence at both ends, faded, then padding to whole frames; None if nothing is audible."""
    windows = samples[: len(samples) // _LEVEL_WINDOW * _LEVEL_WINDOW].reshape(-1, _LEVEL_WINDOW)
    audible = np.flatnonzero(np.sqrt((windows**2).mean(1)) > _AUDIBLE_LEVEL)
    if len(audible) < 20:
        return None
    start = max(0, audible[0] * _LEVEL_WINDOW - _LEAD_SILENCE)
    voice = samples[start : (audible[-1] + 1) * _LEVEL_WINDOW + _TAIL_SILENCE].copy()
    fade = np.linspace(0, 1, _LEVEL_WINDOW, dtype=np.float32)
    voice[:_LEVEL_WINDOW] *= fade
    voice[-_LEVEL_WINDOW:] *= fade[::-1]
    return np.pad(voice, (0, -len(voice) % FRAME_SAMPLES))


def render_share(job: RenderJob) -> int:
    """Frames rendered by one worker."""
    os.nice(5)
    teacher = Teacher()
    sentences = job.corpus.read_text().splitlines()
    speeds = np.random.default_rng(job.index)
    batch: list[Utterance] = []
    frames = shards = 0
    for line in range(job.index, len(sentences), job.workers):
        if time.time() > job.deadline:
            break
        speed = float(np.clip(speeds.normal(1.0, 0.04), 0.9, 1.1))
        text, _, phonemes = sentences[line].partition("\t")
        utterance = teacher.speak(text, speed=speed, seed=line, phonemes=phonemes or None)
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
    arguments = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.time()
    workers = arguments.workers
    jobs = [RenderJob(arguments.corpus, arguments.out, i, workers, start + arguments.seconds) for i in range(workers)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        frames = sum(pool.imap_unordered(render_share, jobs))
    mark_finished(arguments.out)
    logging.info("%.2f hours of speech in %.0f s", hours(frames), time.time() - start)


if __name__ == "__main__":
    main()
