"""Text to the talker's prompts: a speaker and a sentence, as transformers' `CsmProcessor` writes them."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor

from streamsynth.engine.passage import Passage
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.csm.model import ABSENT
from streamsynth.speech import Granularity
from streamsynth.text.cutter import TextCutter

BEGIN = "<|begin_of_text|>"
END = "<|end_of_text|>"


class PromptWriter:
    """What is said never counts as a mark: the names of special tokens in it are spelled out.

    Raises START_FAILED for a tokenizer without the two marks.
    """

    def __init__(self, tokenizer: Tokenizer, codebooks: int) -> None:
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._codebooks = codebooks
        self._begin, self._end = (self._mark(name) for name in (BEGIN, END))

    def __call__(self, speaker: str, text: str) -> Tensor:
        """Input positions, int64 (length, 1 + codebooks)."""
        said = self._tokenizer.encode(f"[{speaker}]{text}", add_special_tokens=False).ids
        tokens = torch.tensor([self._begin, *said, self._end])[:, None]
        return torch.cat((tokens, torch.full((len(tokens), self._codebooks), ABSENT)), 1)

    def _mark(self, name: str) -> int:
        token: int | None = self._tokenizer.token_to_id(name)
        if token is None:
            raise StreamSynthError(ErrorCode.START_FAILED, f"the tokenizer has no {name}")
        return token


class CsmReader:
    """The front end of one request: sentences become passages as soon as they are certain; under granularity "none"
    once all text is there.

    A passage may run to `positions`, its prompt included; `voice` stands before each.
    """

    def __init__(
        self,
        writer: PromptWriter,
        speaker: str,
        granularity: Granularity,
        positions: int,
        voice: Tensor | None = None,
    ) -> None:
        self._writer = writer
        self._speaker = speaker
        self._positions = positions
        self._voice = voice
        self._one_segment = granularity is Granularity.NONE
        self._cutter = TextCutter(clauses=granularity is Granularity.CLAUSE)
        self._finished = False
        self._segment = 0
        self._said: list[str] = []

    def push(self, text: str) -> None:
        self._cutter.push(text)
        if self._one_segment:
            self._said.append(text)

    def finish(self) -> None:
        self._finished = True
        self._cutter.finish()

    @property
    def exhausted(self) -> bool:
        return self._finished and not self._cutter

    def take(self) -> Passage | None:
        certain = self._finished or not self._one_segment
        unit = self._cutter.take() if certain else None
        if unit is None:
            return None
        prompt = self._writer(self._speaker, unit.text)
        room = self._positions - len(prompt)
        if room < 1:
            message = f"a sentence takes {len(prompt)} positions; it may take {self._positions - 1}"
            raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="input")
        segment = 0 if self._one_segment else self._segment
        self._segment += 1
        return Passage(
            prompts=[prompt],
            max_frames=room,
            segment=segment,
            text="".join(self._said) if self._one_segment else unit.text,
            ends_segment=not self._one_segment,
            voice=self._voice,
        )
