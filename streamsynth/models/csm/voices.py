"""The voices of a csm deployment: of each speaker a recording, and the words that are said in it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.csm.pipeline import SAMPLE_RATE

SOUND, WORDS = ".wav", ".txt"

Samples = npt.NDArray[np.float32]


def read_voices(folder: Path, speakers: Collection[str]) -> dict[str, tuple[str, Samples]]:
    """Of each speaker for whom there are `<speaker>.wav` and `<speaker>.txt`: the words, and their sound (samples,),
    float32, one channel at 24 kHz, whatever the file has.

    Raises START_FAILED for a folder without voices, and for a file in it that is none of these, has no partner, or
    cannot be read.
    """
    files = {path.name: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    if not files:
        raise _refused(f"{folder} is no folder of voices: 0{SOUND} and 0{WORDS} would be the first speaker's")
    known = {f"{speaker}{ending}" for speaker in speakers for ending in (SOUND, WORDS)}
    for name, path in files.items():
        if name not in known:
            raise _refused(f"{path} is no voice: the speakers are {', '.join(speakers)}")
        partner = path.with_suffix(WORDS if path.suffix == SOUND else SOUND)
        if partner.name not in files:
            raise _refused(f"{path} needs {partner.name} beside it")
    return {
        path.stem: (_words(path.with_suffix(WORDS)), _sound(path)) for path in files.values() if path.suffix == SOUND
    }


def _words(path: Path) -> str:
    try:
        words = " ".join(path.read_text(encoding="utf-8").split())
    except UnicodeDecodeError:
        raise _refused(f"{path} is not UTF-8") from None
    if not words:
        raise _refused(f"{path} is empty: it has to hold the words of the recording")
    return words


def _sound(path: Path) -> Samples:
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise _refused(f"{path} cannot be read: {error.error_string}") from None
    mono: Samples = samples.mean(1)
    if not mono.size:
        raise _refused(f"{path} holds no sound")
    if not np.isfinite(mono).all():
        raise _refused(f"{path} holds samples that are no numbers")
    return np.asarray(soxr.resample(mono, rate, SAMPLE_RATE), np.float32)


def _refused(message: str) -> StreamSynthError:
    return StreamSynthError(ErrorCode.START_FAILED, message, param="voices")
