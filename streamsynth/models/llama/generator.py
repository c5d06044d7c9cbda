"""Text from prompts: many requests in one batch, a token a step each, as pieces of text that can be shown at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from streamsynth.engine.guesses import Guessing, Lookup
from streamsynth.engine.logits import LogProbs
from streamsynth.engine.planner import Planner
from streamsynth.engine.runner import Drawing, FrameGang, StepRunner
from streamsynth.engine.sampler import SamplingParams
from streamsynth.errors import ErrorCode, StreamSynthError, invalid_value
from streamsynth.models.llama.config import LlamaConfig
from streamsynth.models.llama.detokenise import Detokeniser, StopStrings, TokenBytes

FinishReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRequest:
    """A prompt, and when to stop: at `max_tokens`, at one of `stop_tokens` (None: the model's own), at a string.

    `allowed` are the tokens that may be drawn, bool (vocabulary,). `logprobs` asks for the log-probabilities of each
    token and of so many alternatives.
    """

    prompt: Sequence[int]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_tokens: frozenset[int] | None = None
    stop: tuple[str, ...] = ()
    allowed: Tensor | None = None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What a token added: text that may be empty or hold some that waited. The last piece has a `finish_reason`.

    A token that stops the text is there, with its log-probabilities, but its text is not.
    """

    text: str
    token: int
    logprobs: LogProbs | None
    finish_reason: FinishReason | None = None


class Generation:
    """One request under way. Made by `TextGenerator.open`."""

    def __init__(
        self,
        request: TextRequest,
        gang: FrameGang,
        stop_tokens: frozenset[int],
        tokens: TokenBytes,
        lookup: Lookup | None,
    ) -> None:
        self.gang = gang
        self.finish_reason: FinishReason | None = None
        self._left = request.max_tokens
        self._stop_tokens = stop_tokens
        self._detokeniser = Detokeniser(tokens)
        self._stops = StopStrings(request.stop)
        self._lookup = lookup

    def guess(self, most: int) -> None:
        """Let the next step draw several tokens, should they be what the text's own past suggests."""
        if self._lookup is not None and self.gang.fed:
            tokens = self._lookup.guess(min(most, self._left - 1))
            self.gang.guess([torch.tensor([token]) for token in tokens])

    def take(self, token: int, logprobs: LogProbs | None) -> Piece:
        """Account for the next token; raises ENGINE_FAILED for log-probabilities that are no numbers."""
        if logprobs is not None and logprobs.broken:
            raise StreamSynthError(ErrorCode.ENGINE_FAILED, f"the log-probabilities of token {token} are not numbers")
        self._left -= 1
        if self._lookup is not None:
            self._lookup.push(token)
        stopped = token in self._stop_tokens
        text = "" if stopped else self._stops.push(self._detokeniser.push(token))
        if stopped or self._stops.found:
            self.finish_reason = "stop"
        elif self._left == 0:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            text += self._stops.push(self._detokeniser.finish()) + self._stops.finish()
        return Piece(text, token, logprobs, self.finish_reason)


class TextGenerator:
    """Steps generations together, each with pages of the planner's; not thread-safe.

    `max_positions` bounds a text with its prompt, if the model does not bound it more. With `guessing` a step may make
    several tokens of a text: those that it would have made one by one, up to rounding, as with other texts beside it.
    Texts with masks, penalties or log-probabilities are made one by one.
    """

    def __init__(
        self,
        config: LlamaConfig,
        tokens: TokenBytes,
        runner: StepRunner,
        planner: Planner,
        *,
        page_size: int,
        max_positions: int | None = None,
        guessing: Guessing | None = None,
    ) -> None:
        self._config = config
        self._tokens = tokens
        self._runner = runner
        self._planner = planner
        self._page_size = page_size
        limit = config.decoder.max_position_embeddings
        self._max_positions = limit if max_positions is None else min(limit, max_positions)
        self._guessing = guessing or Guessing(most=0)
        self._open: dict[FrameGang, Generation] = {}

    def open(self, request: TextRequest) -> Generation:
        """Raises INVALID_VALUE for what can never be computed."""
        self._check(request)
        drawing = Drawing(
            first=request.sampling,
            rest=request.sampling,
            allowed={} if request.allowed is None else {0: request.allowed},
            logprobs=request.logprobs,
        )
        gang = FrameGang.of([torch.tensor(request.prompt)[:, None]], drawing, self._page_size)
        stop_tokens = self._config.eos if request.stop_tokens is None else request.stop_tokens
        guesses = self._guessing.most > 0 and not drawing.controlled
        lookup = Lookup(self._guessing, request.prompt) if guesses else None
        generation = self._open[gang] = Generation(request, gang, stop_tokens, self._tokens, lookup)
        return generation

    def close(self, generation: Generation) -> None:
        """Give its pages back, whether it has ended or not. Idempotent."""
        if self._open.pop(generation.gang, None) is not None:
            self._planner.release(generation.gang)
        if not self._open:
            self._planner.check()

    def step(self, generations: Sequence[Generation]) -> list[tuple[Generation, Piece | StreamSynthError]]:
        """One step over as many of these open generations as fit, the neediest first.

        One that has ended, by its last piece or by an error, is closed.
        """
        running = [generation for generation in generations if generation.gang in self._open]
        if each := self._guessing.each(len(running)):
            for text in running:
                text.guess(each)
        gangs = [generation.gang for generation in running]
        plan = self._planner.plan(gangs)
        drawn = self._runner.step(plan, {row: gang for gang in gangs for row in gang.rows})
        for ready in plan.ready:
            self._planner.publish(ready)
        made: list[tuple[Generation, Piece | StreamSynthError]] = []
        for one in drawn:
            generation = self._open.get(one.gang)
            if generation is None:
                continue  # Drawn ahead of what ended it.
            try:
                piece = generation.take(int(one.frame[0]), one.logprobs)
            except StreamSynthError as error:
                made.append((generation, error))
                self.close(generation)
                continue
            made.append((generation, piece))
            if piece.finish_reason is not None:
                self.close(generation)
        return made

    def _check(self, request: TextRequest) -> None:
        vocabulary, most = self._config.vocab_size, self._max_positions
        if not request.prompt:
            raise invalid_value("prompt", "[]", "at least one token")
        if beyond := [token for token in request.prompt if not 0 <= token < vocabulary]:
            raise invalid_value("prompt", beyond[0], f"tokens below {vocabulary}")
        if request.max_tokens < 1:
            raise invalid_value("max_tokens", request.max_tokens, "at least 1")
        length = len(request.prompt) + request.max_tokens
        if length > most:
            raise invalid_value("prompt and max_tokens", length, f"at most {most} together")
        if "" in request.stop:
            raise invalid_value("stop", '""', "strings that are not empty")
        if request.allowed is not None and request.allowed.shape != (vocabulary,):
            raise invalid_value("allowed", list(request.allowed.shape), f"[{vocabulary}], the vocabulary")
        if request.logprobs is not None and request.logprobs > vocabulary:
            raise invalid_value("logprobs", request.logprobs, f"at most {vocabulary}, the vocabulary")
        self._planner.check_fits([length])
