"""The talker stage of the csm pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.engine.passage import Context
from streamsynth.engine.runner import Drawing
from streamsynth.engine.sampler import SamplingParams
from streamsynth.engine.stream import StepResult, Stream
from streamsynth.engine.talker import Talker, TalkerStream, rehearse
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.csm.loop import PAGE_SIZE, LoopSizes, open_loop
from streamsynth.models.csm.pipeline import CSM, TOKEN_RATE
from streamsynth.models.csm.prompts import CsmReader, PromptWriter
from streamsynth.models.csm.voices import read_voices
from streamsynth.models.csm.weights import load_talker
from streamsynth.models.llama.detokenise import load_tokenizer
from streamsynth.models.mimi.encoder import MimiEncoder
from streamsynth.speech import SpeechRequest

_PAGES_BYTES = 8 << 30

_FEWEST_POSITIONS = 64
"""A short sentence with its sound."""


class CsmEngine:
    """Loads `config.json`, `tokenizer.json` and safetensors from a folder.

    `voices` is a folder of recordings (voices.py): what a speaker says stands behind that speaker's recording. With
    `context` a sentence goes on from the one before it, if that took at most `context_positions`.
    """

    def __init__(
        self,
        *,
        folder: str,
        voices: str,
        device: str,
        dtype: str,
        temperature: float,
        depth_temperature: float,
        top_k: int,
        max_rows: int,
        max_tokens: int,
        max_model_len: int,
        context: bool,
        context_positions: int,
        float8: bool,
        kv_cache_memory_bytes: int | None = None,
        gpu_memory_utilization: float | None = None,
    ) -> None:
        torch.set_num_threads(1)
        recorded = _encoded(Path(voices), Path(folder), device) if voices else {}
        budget = KvBudget(kv_cache_memory_bytes, gpu_memory_utilization, _PAGES_BYTES)
        measured = MeasuredDevice(budget, torch.device(device))
        model = load_talker(Path(folder), dtype=getattr(torch, dtype), device=device)
        self._writer = PromptWriter(load_tokenizer(Path(folder)), model.codebooks)
        loop = open_loop(
            model,
            LoopSizes(
                gang_rows=1,
                max_rows=max_rows,
                max_tokens=max_tokens,
                max_model_len=max_model_len,
                float8=float8,
            ),
            measured,
        )
        # As `CsmProcessor` has it: behind the sound of a context stands the frame that ends it.
        end = model.feedback(torch.full((1, model.codebooks), model.config.eos_code))
        self._voices = {
            speaker: torch.cat((self._writer(speaker, words), model.feedback(codes), end))
            for speaker, (words, codes) in recorded.items()
        }
        longest = max(map(len, self._voices.values()), default=0)
        self._positions = loop.max_positions - longest - (context_positions if context else 0)
        if 2 * longest > loop.max_positions:
            limit = loop.max_positions // 2
            message = f"a voice in {voices} takes {longest} positions, words and sound; it may take {limit}"
            raise StreamSynthError(ErrorCode.START_FAILED, message, param="voices")
        if self._positions < _FEWEST_POSITIONS:
            message = (
                f"a row has {loop.max_positions} positions: what stands before a sentence leaves {self._positions} of "
            )
            message += f"them, and {_FEWEST_POSITIONS} are the fewest; raise max_model_len or lower context_positions"
            raise StreamSynthError(ErrorCode.START_FAILED, message, param="max_model_len")
        self._talker = Talker(
            loop.runner,
            loop.planner,
            page_size=PAGE_SIZE,
            rate=TOKEN_RATE,
            codebooks=model.codebooks,
            eos=model.config.eos_code,
            frame_units=model.codebooks,
            context=Context(positions=context_positions, row_positions=loop.max_positions - longest, end=end.unbind())
            if context
            else None,
        )
        self._sampling = {"first": temperature, "rest": depth_temperature}
        self._top_k = top_k
        self.rehearsals = rehearse(self, self._say_hello, frame_s=model.codebooks / TOKEN_RATE)

    def open(self, request: Mapping[str, Any]) -> TalkerStream:
        asked = SpeechRequest.from_wire(dict(request))
        seed = (asked.seed or 0) % 2**63
        first, rest = (
            SamplingParams(temperature=self._sampling[name], top_k=self._top_k, seed=seed) for name in ("first", "rest")
        )
        limit = min(CSM.speech.max_new_tokens, asked.max_new_tokens or CSM.speech.max_new_tokens)
        voice = self._voices.get(asked.voice)
        reader = CsmReader(self._writer, asked.voice, asked.granularity, self._positions, voice)
        return self._talker.add(reader, Drawing(first=first, rest=rest), limit)

    def step(self, streams: Sequence[Stream]) -> StepResult:
        return self._talker.step(streams)

    def counters(self) -> dict[str, int]:
        return self._talker.counters()

    def close(self) -> None:
        pass

    def _say_hello(self) -> TalkerStream:
        stream = self.open(SpeechRequest(voice=CSM.speech.default_voice, seed=0).to_wire())
        stream.push("Hello, how are you?")
        stream.finish()
        return stream


def _encoded(voices: Path, folder: Path, device: str) -> dict[str, tuple[str, torch.Tensor]]:
    """Of each speaker with a recording: its words, and its codes (frames, codebooks) by the checkpoint's own Mimi."""
    read = read_voices(voices, [voice.id for voice in CSM.speech.voices])
    encoder = MimiEncoder.load(folder, device=device)
    found = {}
    for speaker, (words, samples) in read.items():
        codes = encoder.encode(torch.from_numpy(samples).to(device)[None])
        found[speaker] = words, codes[0].T.cpu()
    return found
