"""Text to the talker's prompts: a speaker and a sentence, as transformers' `CsmProcessor` writes them."""

from __future__ import annotations

from collections import deque

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
    """The front end of one request: sentences become passages as soon as they are certain.

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
        self._passages: deque[Passage] = deque()

    def push(self, text: str) -> None:
        self._said.append(text)
        self._cutter.push(text)
        self._read()

    def finish(self) -> None:
        self._finished = True
        self._cutter.finish()
        self._read()

    @property
    def exhausted(self) -> bool:
        return self._finished and not self._passages

    def take(self) -> Passage | None:
        passage = self._passages.popleft() if self._passages else None
        if passage is not None and passage.max_frames < 1:
            message = f"a sentence takes {len(passage.prompts[0])} positions; it may take {self._positions - 1}"
            raise StreamSynthError(ErrorCode.INVALID_VALUE, message, param="input")
        return passage

    def _read(self) -> None:
        while (unit := self._cutter.take()) is not None:
            prompt = self._writer(self._speaker, unit.text)
            self._passages.append(
                Passage(
                    prompts=[prompt],
                    max_frames=self._positions - len(prompt),
                    segment=0 if self._one_segment else self._segment,
                    text="".join(self._said) if self._one_segment else unit.text,
                    ends_segment=not self._one_segment,
                    voice=self._voice,
                )
            )
            self._segment += 1
