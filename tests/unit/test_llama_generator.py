"""Generations: pieces of text, log-probabilities, masks, penalties, and how they end."""

from collections.abc import Mapping, Sequence

import pytest
import torch
from llama_batch import VOCABULARY, generator, ours, page_memory, reference_model
from transformers import PreTrainedModel
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from streamsynth.engine.logits import LogProbs
from streamsynth.engine.planner import Plan, Row
from streamsynth.engine.runner import Drawn, FrameGang, Runner
from streamsynth.engine.sampler import SamplingParams
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.models.llama.generator import Generation, Piece, TextGenerator, TextRequest
from streamsynth.models.llama.model import LlamaModel

GREEDY = SamplingParams(temperature=0.0)
VARIED = SamplingParams(temperature=30.0, seed=2)
"""Says no token twice in the few steps of these tests."""
PROMPT = [3, 14, 15, 9, 26]
NEVER: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    return reference_model("qwen3")


@pytest.fixture(scope="module")
def model(reference: PreTrainedModel) -> LlamaModel:
    return ours(reference)


def asked(
    *,
    prompt: Sequence[int] = PROMPT,
    max_tokens: int = 12,
    sampling: SamplingParams = GREEDY,
    stop_tokens: frozenset[int] = NEVER,
    stop: tuple[str, ...] = (),
    allowed: torch.Tensor | None = None,
    logprobs: int | None = None,
) -> TextRequest:
    return TextRequest(
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=sampling,
        stop_tokens=stop_tokens,
        stop=stop,
        allowed=allowed,
        logprobs=logprobs,
    )


def pieces(texts: TextGenerator, *generations: Generation) -> dict[Generation, list[Piece | StreamSynthError]]:
    made: dict[Generation, list[Piece | StreamSynthError]] = {generation: [] for generation in generations}
    while new := texts.step(generations):
        for generation, piece in new:
            made[generation].append(piece)
    return made


def said(texts: TextGenerator, request: TextRequest) -> list[Piece]:
    generation = texts.open(request)
    made = pieces(texts, generation)[generation]
    assert all(isinstance(piece, Piece) for piece in made)
    return [piece for piece in made if isinstance(piece, Piece)]


class Scripted:
    """A runner whose frames are given: all those of a request at once, as if drawn ahead."""

    busy = False

    def __init__(self, frames: Mapping[int, Sequence[tuple[int, float]]]) -> None:
        self._frames = frames

    def step(self, plan: Plan, gangs: Mapping[Row, FrameGang]) -> list[Drawn]:
        drawn = []
        for row in (gang.rows[0] for gang in plan.ready):
            gang = gangs[row]
            for token, value in self._frames[int(gang.prompts[0][0, 0])]:
                gang.launch()
                gang.feed(torch.tensor([token]))
                logprobs = LogProbs(torch.tensor([[token]]), torch.tensor([[value]]))
                drawn.append(Drawn(gang, torch.tensor([token]), logprobs))
        return drawn


def test_what_is_drawn_beyond_a_stop_leaves_no_token_and_no_log_probability(model: LlamaModel) -> None:
    """SC-6."""
    texts = generator(model, Scripted({0: [(7, -1.0), (8, -2.0), (9, -3.0)]}))
    made = said(texts, asked(prompt=[0], stop_tokens=frozenset({7}), logprobs=0))
    assert [piece.token for piece in made] == [7]
    assert [piece.finish_reason for piece in made] == ["stop"]
    assert [piece.logprobs.tokens[0, 0] for piece in made if piece.logprobs] == [7]


def test_a_bad_log_probability_fails_its_request_alone(model: LlamaModel) -> None:
    """SC-7."""
    texts = generator(model, Scripted({0: [(7, -1.0)], 1: [(8, float("nan"))]}))
    good, bad = texts.open(asked(prompt=[0], max_tokens=3, logprobs=0)), texts.open(asked(prompt=[1], logprobs=0))
    made = pieces(texts, good, bad)
    (error,) = made[bad]
    assert isinstance(error, StreamSynthError)
    assert error.code is ErrorCode.ENGINE_FAILED
    assert [piece.token for piece in made[good] if isinstance(piece, Piece)] == [7, 7, 7]
    assert good.finish_reason == "length"


def test_a_stop_token_ends_the_text_and_is_not_part_of_it(model: LlamaModel) -> None:
    whole = said(generator(model), asked(sampling=VARIED))
    stopped = said(generator(model), asked(sampling=VARIED, stop_tokens=frozenset({whole[4].token})))
    assert [piece.token for piece in stopped] == [piece.token for piece in whole[:5]]
    assert "".join(piece.text for piece in stopped) == "".join(piece.text for piece in whole[:4])
    assert [piece.finish_reason for piece in stopped] == [None] * 4 + ["stop"]
    assert whole[-1].finish_reason == "length"


def test_a_stop_string_ends_the_text_before_it(model: LlamaModel) -> None:
    whole = "".join(piece.text for piece in said(generator(model), asked(sampling=VARIED)))
    stopped = said(generator(model), asked(sampling=VARIED, stop=("not there", whole[4:7])))
    assert "".join(piece.text for piece in stopped) == whole[: whole.index(whole[4:7])]
    assert stopped[-1].finish_reason == "stop"
    assert all(piece.finish_reason is None for piece in stopped[:-1])


def test_text_that_waited_for_a_stop_string_comes_with_the_last_piece(model: LlamaModel) -> None:
    whole = "".join(piece.text for piece in said(generator(model), asked(sampling=VARIED)))
    limited = said(generator(model), asked(sampling=VARIED, stop=(whole[-2:] + "never",)))
    assert "".join(piece.text for piece in limited) == whole
    assert limited[-1].text == whole[-2:]


@torch.inference_mode()
def test_log_probabilities_are_the_models_own(reference: PreTrainedModel, model: LlamaModel) -> None:
    """Of rows that sample at different settings, with and without alternatives, beside one that asks for none."""
    texts = generator(model)
    sampled = SamplingParams(temperature=3.0, top_k=10, repetition_penalty=2.0, seed=1)
    three, none, quiet = (
        texts.open(asked(sampling=sampled, logprobs=3)),
        texts.open(asked(sampling=sampled, logprobs=0)),
        texts.open(asked()),
    )
    made = pieces(texts, three, quiet, none)
    for generation, count in ((three, 4), (none, 1)):
        fed = list(PROMPT)
        for piece in made[generation]:
            assert isinstance(piece, Piece)
            assert piece.logprobs is not None
            values = reference(torch.tensor([fed])).logits[0, -1].log_softmax(-1)
            fed.append(piece.token)
            expected = [piece.token, *values.topk(count - 1).indices.tolist()]
            assert piece.logprobs.tokens.tolist() == [expected]
            torch.testing.assert_close(piece.logprobs.values[0], values[expected], atol=2e-4, rtol=0)
    assert all(isinstance(piece, Piece) and piece.logprobs is None for piece in made[quiet])


def test_a_mask_leaves_only_its_tokens_to_its_own_request(model: LlamaModel) -> None:
    allowed = torch.zeros(VOCABULARY, dtype=torch.bool)
    allowed[[5, 11, 40]] = True
    texts = generator(model)
    free, masked = texts.open(asked()), texts.open(asked(allowed=allowed, sampling=SamplingParams(seed=4)))
    made = pieces(texts, free, masked)
    assert {piece.token for piece in made[masked] if isinstance(piece, Piece)} <= {5, 11, 40}
    assert made[free] == said(generator(model), asked())


@torch.inference_mode()
def penalised(reference: PreTrainedModel, prompt: Sequence[int], penalty: float, count: int) -> list[int]:
    """As transformers penalises what was generated, greedily."""
    process = RepetitionPenaltyLogitsProcessor(penalty, prompt_ignore_length=len(prompt))
    fed = list(prompt)
    for _ in range(count):
        ids = torch.tensor([fed])
        fed.append(int(process(ids, reference(ids).logits[:, -1]).argmax()))
    return fed[len(prompt) :]


def test_a_repetition_penalty_follows_its_request_through_the_batch(
    reference: PreTrainedModel, model: LlamaModel
) -> None:
    """Two rows of different penalties, of which others join and leave, are each what they are alone."""
    texts = generator(model)
    one = texts.open(asked(max_tokens=30, sampling=SamplingParams(temperature=0.0, repetition_penalty=1.7)))
    made = {one: [piece for _, piece in texts.step([one])] + [piece for _, piece in texts.step([one])]}
    other = texts.open(
        asked(prompt=[1, 2], max_tokens=30, sampling=SamplingParams(temperature=0.0, repetition_penalty=1.2))
    )
    brief = texts.open(asked(prompt=[8], max_tokens=5))
    for generation, more in pieces(texts, other, brief, one).items():
        made.setdefault(generation, []).extend(more)
    tokens = {g: [piece.token for piece in made[g] if isinstance(piece, Piece)] for g in (one, other, brief)}
    assert tokens[one] == penalised(reference, PROMPT, 1.7, 30)
    assert tokens[other] == penalised(reference, [1, 2], 1.2, 30)
    assert tokens[brief] == penalised(reference, [8], 1.0, 5)
    assert tokens[one] != penalised(reference, PROMPT, 1.0, 30)


def test_a_request_that_is_closed_gives_its_pages_back_and_says_nothing_more(model: LlamaModel) -> None:
    texts = generator(model)
    generation = texts.open(asked())
    texts.step([generation])
    texts.close(generation)
    texts.close(generation)
    assert texts.step([generation]) == []
    assert not generation.gang.holds_pages


def test_more_requests_than_a_step_has_rows_take_turns(model: LlamaModel) -> None:
    texts = generator(model, Runner(model, page_memory(model)))
    generations = [texts.open(asked(prompt=[start, 4], max_tokens=3)) for start in range(12)]
    made = pieces(texts, *generations)
    for start, generation in enumerate(generations):
        assert made[generation] == said(generator(model), asked(prompt=[start, 4], max_tokens=3))


@pytest.mark.parametrize(
    ("message", "request_"),
    [
        ("prompt", asked(prompt=[])),
        ("prompt", asked(prompt=[1, VOCABULARY])),
        ("max_tokens", asked(max_tokens=0)),
        ("stop", asked(stop=("a", ""))),
        ("allowed", asked(allowed=torch.ones(VOCABULARY - 1, dtype=torch.bool))),
        (r"allowed\[0\] is 'no token'", asked(allowed=torch.zeros(VOCABULARY, dtype=torch.bool))),
        ("logprobs is 21; it must be from 0 to 20", asked(logprobs=21)),
    ],
)
def test_a_request_that_cannot_be_is_refused_by_name(model: LlamaModel, message: str, request_: TextRequest) -> None:
    texts = generator(model)
    with pytest.raises(StreamSynthError, match=message):
        texts.open(request_)
    texts.close(texts.open(asked()))
