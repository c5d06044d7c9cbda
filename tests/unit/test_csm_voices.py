"""Speakers of csm with a recording of their own, on a folder of random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch
from csm_sizes import SMALL_CODEC, SMALL_TALKER
from tokenizers import Tokenizer

from streamsynth.config.unset import UNSET
from streamsynth.engine.runner import FrameGang
from streamsynth.engine.talker import TalkerStream
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.csm.engine import CsmEngine
from streamsynth.models.csm.model import ABSENT
from streamsynth.models.csm.pipeline import CODEBOOKS, CSM, SAMPLE_RATE
from streamsynth.models.csm.prompts import PromptWriter
from streamsynth.models.csm.random_folder import write_random_csm
from streamsynth.models.mimi.encoder import MimiEncoder
from streamsynth.speech import SpeechRequest

WORDS = "So it is said."
END = 0
SOUND_RATE = 16_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    made = tmp_path_factory.mktemp("csm")
    write_random_csm(made, SMALL_TALKER, SMALL_CODEC, dtype=torch.float32)
    # As Sesame's has it; a random folder's is beyond its vocabulary, so that nothing ends.
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"codebook_eos_token_id": END}))
    return made


@pytest.fixture
def voices(tmp_path: Path) -> Path:
    made = tmp_path / "voices"
    made.mkdir()
    record(made / "3.wav")
    (made / "3.txt").write_text("  So it\nis said. ")
    return made


def record(path: Path, seconds: float = 1.03) -> None:
    """In two channels, at another rate than the codec's."""
    noise = np.random.default_rng(0).normal(0, 0.1, (int(seconds * SOUND_RATE), 2))
    soundfile.write(path, noise, SOUND_RATE, subtype="FLOAT")


def engine(folder: Path, voices: Path | str = "", **changed: object) -> CsmEngine:
    declared = {name: value for name, value in CSM.stage("talker").options.items() if value is not UNSET}
    given = {"folder": str(folder), "voices": str(voices), "device": "cpu", "dtype": "float32"}
    return CsmEngine(**declared | given | {"kv_cache_memory_bytes": 1 << 20, "max_rows": 4} | changed)


def spoken(folder: Path, voices: Path) -> list[list[int]]:
    """The recording as input positions: its words, its frames, and the frame that ends them."""
    samples, _ = soundfile.read(voices / "3.wav", dtype="float32")
    mono = torch.from_numpy(soxr.resample(samples.mean(1), SOUND_RATE, SAMPLE_RATE))
    codes = MimiEncoder.load(folder).encode(mono[None])[0].T.tolist()
    words = PromptWriter(Tokenizer.from_file(str(folder / "tokenizer.json")), CODEBOOKS)("3", WORDS).tolist()
    return [*words, *([ABSENT, *frame] for frame in codes), [ABSENT] + [END] * CODEBOOKS]


def gangs(talker: CsmEngine, stream: TalkerStream, count: int) -> list[FrameGang]:
    found: list[FrameGang] = []
    while len(found) < count:
        talker.step([stream])
        if stream.gang is not None and stream.gang not in found:
            found.append(stream.gang)
    return found


def test_what_a_speaker_says_stands_behind_the_recording_of_that_speaker(folder: Path, voices: Path) -> None:
    talker = engine(folder, voices)
    prompts = {}
    for speaker in ("3", "4"):
        stream = talker.open(SpeechRequest(voice=speaker, seed=1).to_wire())
        stream.push("One.")
        stream.finish()
        prompts[speaker] = gangs(talker, stream, 1)[0].prompts[0].tolist()
        stream.close()
    expected = spoken(folder, voices)
    assert len(expected) > 14 + 12, "a second of sound is over twelve frames"
    assert prompts["3"][: len(expected)] == expected
    assert len(prompts["3"]) == len(expected) + len(prompts["4"]), "who has no recording is prompted as ever"


def test_a_recording_is_computed_once_for_all_who_speak_with_it(folder: Path, voices: Path) -> None:
    talker = engine(folder, voices)
    pool = talker._talker._planner._pool
    whole = len(spoken(folder, voices)) // 16
    assert whole > 1
    hits = []
    for number, text in enumerate(("One.", "Another sentence.", "And one more.")):
        before = pool.prefix_hits
        stream = talker.open(SpeechRequest(voice="3", seed=number, max_new_tokens=2).to_wire())
        stream.push(text)
        stream.finish()
        while not stream.done:
            talker.step([stream])
        stream.close()
        hits.append(pool.prefix_hits - before)
    assert hits == [0, whole, whole]


def test_behind_another_sentence_the_recording_stands_once(
    folder: Path, voices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sentence is ended by the next code that it draws, so that there is something to go on from."""
    talker = engine(folder, voices, context=True, context_positions=64, temperature=0.0, depth_temperature=0.0)
    stream = talker.open(SpeechRequest(voice="3", seed=1).to_wire())
    stream.push("One. Two. ")
    stream.finish()
    first = gangs(talker, stream, 1)[0]
    while len(first.fed) < 6:
        talker.step([stream])
    codes = [int(frame[1]) for frame in first.fed]
    end = next(code for code in codes if code != codes[0])
    stream.close()
    monkeypatch.setattr(talker._talker, "_eos", end)
    stream = talker.open(SpeechRequest(voice="3", seed=1).to_wire())
    stream.push("One. Two. ")
    stream.finish()
    one, two = gangs(talker, stream, 2)
    recorded = spoken(folder, voices)
    before, behind = one.prompts[0].tolist(), two.prompts[0].tolist()
    assert before[: len(recorded)] == behind[: len(recorded)] == recorded
    assert behind[len(recorded) : len(before)] == before[len(recorded) :], "then the first sentence"
    words = len(before) - len(recorded)
    assert recorded[0] == behind[-words], "and at the end the second, which has as many words"
    assert behind.count(recorded[0]) == 3


def test_a_context_that_leaves_no_room_for_a_sentence_is_refused_at_the_start(folder: Path) -> None:
    with pytest.raises(StreamSynthError, match="leaves 56 of them, and 64 are the fewest") as refused:
        engine(folder, context=True, context_positions=200)
    assert refused.value.code is ErrorCode.START_FAILED


def emptied(voices: Path) -> None:
    (voices / "3.txt").write_text(" \n")


def alone(voices: Path) -> None:
    (voices / "3.txt").unlink()


def strange(voices: Path) -> None:
    (voices / "anna.wav").write_bytes(b"")


def no_sound(voices: Path) -> None:
    (voices / "3.wav").write_bytes(b"words")


def silent(voices: Path) -> None:
    soundfile.write(voices / "3.wav", np.zeros((0, 1)), SOUND_RATE)


def long(voices: Path) -> None:
    record(voices / "3.wav", 12.0)


def nothing(voices: Path) -> None:
    for path in voices.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (emptied, "3.txt is empty"),
        (alone, "3.wav needs 3.txt beside it"),
        (strange, "anna.wav is no voice: the speakers are 0, 1,"),
        (no_sound, "3.wav cannot be read"),
        (silent, "3.wav holds no sound"),
        (long, "takes 170 positions, words and sound; it may take 128"),
        (nothing, "no folder of voices"),
    ],
)
def test_a_voice_that_cannot_be_used_is_refused_at_the_start_by_name(
    spoil: Callable[[Path], None], said: str, folder: Path, voices: Path
) -> None:
    spoil(voices)
    with pytest.raises(StreamSynthError, match=said) as refused:
        engine(folder, voices)
    assert refused.value.code is ErrorCode.START_FAILED
    assert refused.value.param == "voices"
