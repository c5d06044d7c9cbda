"""The talker stage of tiny-speech."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.engine.passage import Context
from streamsynth.engine.runner import Drawing
from streamsynth.engine.sampler import SamplingParams
from streamsynth.engine.stream import StepResult, Stream
from streamsynth.engine.talker import Talker, TalkerStream, rehearse
from streamsynth.models.csm.loop import PAGE_SIZE, LoopSizes, open_loop
from streamsynth.models.csm.weights import load_talker
from streamsynth.models.tiny_speech.pipeline import FRAME_RATE, TINY_SPEECH
from streamsynth.models.tiny_speech.places import weights_folder
from streamsynth.models.tiny_speech.prompts import TinyReader, Vocabulary, Voice
from streamsynth.models.tiny_speech.reading import Alphabet, open_reading
from streamsynth.speech import SpeechRequest

TRAINED_POSITIONS = 512
"""The longest chain of passages that the talker was trained on."""

_PAGES_BYTES = 128 << 20


class TinyTalker:
    """`guidance` 1 runs one row a request, any other scale two. `temperature` is that of the first codebook.

    With `context` a passage goes on from the one before it, if that took at most `context_positions`.
    """

    def __init__(
        self,
        *,
        device: str,
        dtype: str,
        alphabet: str,
        guidance: float,
        temperature: float,
        depth_temperature: float,
        top_k: int,
        max_rows: int,
        max_tokens: int,
        context: bool,
        context_positions: int,
        kv_cache_memory_bytes: int | None = None,
        gpu_memory_utilization: float | None = None,
    ) -> None:
        torch.set_num_threads(1)
        budget = KvBudget(kv_cache_memory_bytes, gpu_memory_utilization, _PAGES_BYTES)
        measured = MeasuredDevice(budget, torch.device(device))
        read = Alphabet.named(alphabet)
        folder = weights_folder()
        model = load_talker(folder / "talker", dtype=getattr(torch, dtype), device=device)
        self._guidance = guidance
        loop = open_loop(
            model,
            LoopSizes(
                gang_rows=1 if self._guidance == 1.0 else 2,
                max_rows=max_rows,
                max_tokens=max_tokens,
                max_model_len=-1,
            ),
            measured,
        )
        self._talker = Talker(
            loop.runner,
            loop.planner,
            page_size=PAGE_SIZE,
            rate=FRAME_RATE,
            codebooks=model.config.codebooks,
            eos=model.config.eos_code,
            context=Context(
                positions=context_positions, row_positions=loop.max_positions, trained_positions=TRAINED_POSITIONS
            )
            if context
            else None,
        )
        vocabulary = Vocabulary(folder, read, model.config.codebooks)
        self._voice = Voice(vocabulary, open_reading(read, vocabulary.symbols), guided=self._guidance != 1.0)
        self._sampling = {"first": temperature, "rest": depth_temperature}
        self._top_k = top_k
        self.rehearsals = rehearse(self, self._say_hello, frame_s=1 / FRAME_RATE)

    def open(self, request: Mapping[str, Any]) -> TalkerStream:
        asked = SpeechRequest.from_wire(dict(request))
        seed = (asked.seed or 0) % 2**63
        first, rest = (
            SamplingParams(temperature=self._sampling[name], top_k=self._top_k, seed=seed) for name in ("first", "rest")
        )
        most = TINY_SPEECH.speech.max_new_tokens
        tokens = min(most, asked.max_new_tokens or most)
        # A token is a frame of what is heard, whose speed the codec makes.
        limit = max(1, int(tokens * asked.speed))
        reader = TinyReader(self._voice, asked.granularity)
        return self._talker.add(reader, Drawing(first=first, rest=rest, scale=self._guidance), limit)

    def step(self, streams: Sequence[Stream]) -> StepResult:
        return self._talker.step(streams)

    def counters(self) -> dict[str, int]:
        return self._talker.counters()

    def close(self) -> None:
        pass

    def _say_hello(self) -> TalkerStream:
        stream = self.open(SpeechRequest(voice="", seed=0).to_wire())
        stream.push("Hello, how are you?")
        stream.finish()
        return stream
