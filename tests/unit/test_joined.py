"""Two stages in one worker are what they are in two."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mimi_models import SMALL as CODEC
from mimi_models import config_of, random_reference
from talker_batch import PAGE_SIZE, SMALL, captured, prompt

from streamsynth.config.plan import plan
from streamsynth.config.resolve import Setting, resolve
from streamsynth.config.sharing import share_workers
from streamsynth.engine.attention import PageMemory
from streamsynth.engine.joined import JoinedEngine, JoinedStream
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.passage import Passage
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import Drawing
from streamsynth.engine.sampler import SamplingParams
from streamsynth.engine.stream import Emission
from streamsynth.engine.talker import Talker, TalkerStream
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.csm.random_weights import random_talker
from streamsynth.models.mimi.decoder import MimiDecoder
from streamsynth.models.mimi.engine import MimiEngine
from streamsynth.models.tiny_speech.pipeline import TINY_SPEECH

RATE = CODEC["sampling_rate"]
FRAME_RATE = 25
FRAMES = 7
THIS = "test_joined"


class Letters:
    """A reader for which each letter is a passage of FRAMES frames; it cannot say a question mark."""

    def __init__(self) -> None:
        self.letters: list[str] = []
        self.taken = 0
        self.finished = False

    def push(self, text: str) -> None:
        self.letters += text

    def finish(self) -> None:
        self.finished = True

    @property
    def exhausted(self) -> bool:
        return self.finished and self.taken == len(self.letters)

    def take(self) -> Passage | None:
        if self.taken == len(self.letters):
            return None
        letter = self.letters[self.taken]
        if letter == "?":
            raise StreamSynthError(ErrorCode.INVALID_VALUE, "cannot be said", param="input")
        self.taken += 1
        said = prompt([ord(letter) % 50 + 1])
        return Passage([said], FRAMES, segment=self.taken - 1, text=letter, ends_segment=True)


class SmallTalker:
    """A talker as a stage's engine: launches ahead, as on a device."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        model = random_talker(SMALL, head_gain=40.0)
        backbone = model.config.backbone
        memory = PageMemory(
            layers=backbone.layers,
            page_size=PAGE_SIZE,
            kv_heads=backbone.kv_heads,
            head_dim=backbone.head_dim,
            pages=200,
            like=model.projector.weight,
        )
        planner = Planner(PagePool(200), page_size=PAGE_SIZE, max_rows=8, max_tokens=16)
        self._talker = Talker(
            captured()(model, memory), planner, page_size=PAGE_SIZE, rate=FRAME_RATE, codebooks=4, eos=SMALL.eos_code
        )
        self.step = self._talker.step
        self.counters = self._talker.counters

    def open(self, request: dict[str, int]) -> TalkerStream:
        sampling = SamplingParams(top_k=20, seed=request["seed"])
        return self._talker.add(Letters(), Drawing(first=sampling, rest=sampling), request.get("limit", 1000))

    def close(self) -> None: ...


class SmallCodec(MimiEngine):
    def __init__(self) -> None:
        reference = random_reference(CODEC)
        decoder = MimiDecoder(config_of(reference), dict(reference.state_dict()))
        super().__init__(decoder, sample_rate=RATE, max_streams=4)


def engine() -> JoinedEngine:
    return JoinedEngine(
        maker={"engine": f"{THIS}:SmallTalker", "options": {}, "unit": "frame"},
        taker={"engine": f"{THIS}:SmallCodec", "options": {}},
    )


def run(joined: JoinedEngine, *streams: JoinedStream) -> dict[JoinedStream, list[Emission | StreamSynthError]]:
    """Step those that can, until each has ended."""
    made: dict[JoinedStream, list[Emission | StreamSynthError]] = {stream: [] for stream in streams}
    living = list(streams)
    while living:
        for stream, emission in joined.step([stream for stream in living if stream.wake_at() is not None]).made:
            assert isinstance(stream, JoinedStream)
            made[stream].append(emission)
            if isinstance(emission, StreamSynthError) or emission.final:
                living.remove(stream)
                stream.close()
    return made


def say(joined: JoinedEngine, text: str, seed: int, **request: int) -> JoinedStream:
    stream = joined.open({"seed": seed, **request})
    stream.push(text)
    stream.finish()
    return stream


def samples(made: list[Emission | StreamSynthError]) -> np.ndarray:
    return np.concatenate([emission.media for emission in made if isinstance(emission, Emission)])


def apart(text: str, seed: int) -> np.ndarray:
    """All that a talker says, decoded afterwards."""
    talker, codec = SmallTalker(), SmallCodec()
    speaking = talker.open({"seed": seed})
    speaking.push(text)
    speaking.finish()
    sounding = JoinedStream(engine(), speaking, codec.open({}))
    while not sounding.spoken:
        for _, made in talker.step([speaking]).made:
            assert isinstance(made, Emission)
            sounding.feed(made, TINY_SPEECH.stage("talker").unit)
    heard = []
    while not (heard and heard[-1].final):
        for _, emission in codec.step([sounding.taker]).made:
            assert isinstance(emission, Emission)
            heard.append(emission)
    return np.concatenate([emission.media for emission in heard])


def test_requests_that_share_steps_sound_as_each_stage_run_after_the_other() -> None:
    joined = engine()
    one, other = say(joined, "abc", seed=1), say(joined, "defg", seed=2)
    made = run(joined, one, other)
    for stream, text, seed in ((one, "abc", 1), (other, "defg", 2)):
        expected = apart(text, seed)
        assert samples(made[stream]).shape == expected.shape
        assert np.abs(samples(made[stream]) - expected).max() < 1e-5
        texts = [emission.segment_text for emission in made[stream] if isinstance(emission, Emission)]
        assert [text for text in texts if text is not None] == list(text)


def test_a_request_that_ends_by_its_length_says_so_and_all_pages_and_slots_come_back() -> None:
    joined = engine()
    before = joined.counters()
    stream = say(joined, "abc", seed=1, limit=3)
    last = run(joined, stream)[stream][-1]
    assert isinstance(last, Emission)
    assert last.final
    assert last.finish_reason == "length"
    assert last.consumed == 0
    after = joined.counters()
    assert (after["free_slots"], after["free_pages"]) == (before["free_slots"], before["free_pages"])


def test_what_the_first_stage_refuses_ends_its_request_alone() -> None:
    joined = engine()
    refused, other = say(joined, "a?", seed=1), say(joined, "bc", seed=2)
    made = run(joined, refused, other)
    error = made[refused][-1]
    assert isinstance(error, StreamSynthError)
    assert error.code is ErrorCode.INVALID_VALUE
    assert len(samples(made[other])) == len(apart("bc", 2))


def test_a_request_without_a_place_in_the_second_stage_has_none_in_the_first() -> None:
    joined = engine()
    streams = [joined.open({"seed": number}) for number in range(4)]
    with pytest.raises(StreamSynthError, match="every stream of the codec"):
        joined.open({"seed": 4})
    assert joined.counters()["live"] == 4
    for stream in streams:
        stream.close()


def test_a_step_is_shared_by_those_whose_frames_it_made() -> None:
    joined = engine()
    streams = [say(joined, "abc", seed=seed) for seed in range(2)]
    shares = [share for _ in range(4) for share in joined.step(streams).shares or ()]
    assert shares
    assert set(shares) == {1 / FRAME_RATE}


def test_stages_that_share_a_worker_are_one_stage_with_the_options_of_both() -> None:
    (deployment,) = plan(["tiny-speech"], sets=["codec.shares_worker=true", "talker.top_k=7", "codec.lead_seconds=3"])
    shared = share_workers(deployment)
    assert list(shared.stages) == ["talker_codec"]
    assert shared.pipeline.output == "talker_codec"
    stage = shared.stages["talker_codec"]
    assert stage.lead_seconds == 3
    assert stage.options["maker"]["options"]["top_k"] == 7
    assert stage.stage.rate == TINY_SPEECH.stage("codec").rate
    assert stage.stage.inputs == ()


def test_without_the_switch_each_stage_has_its_worker() -> None:
    (deployment,) = plan(["tiny-speech"])
    assert share_workers(deployment) is deployment


def test_a_stage_that_reads_the_request_has_no_worker_to_share() -> None:
    with pytest.raises(StreamSynthError, match=r"talker\.shares_worker"):
        resolve(TINY_SPEECH, command_line={"talker": {"shares_worker": Setting(True, "--set")}})


def test_the_switch_is_true_or_false() -> None:
    with pytest.raises(StreamSynthError, match="true or false"):
        resolve(TINY_SPEECH, command_line={"codec": {"shares_worker": Setting(1, "--set")}})
