"""Tokens guessed from a text's own past: what is looked up, and that no guess changes what is said."""

from collections.abc import Sequence

import pytest
import torch
from llama_batch import PAGE_SIZE, VOCABULARY, letters, ours, page_memory, reference_model

from streamsynth.engine.guesses import Guessing, Lookup
from streamsynth.engine.kv.pages import PagePool
from streamsynth.engine.planner import Plan, Planner, Row
from streamsynth.engine.runner import Drawn, FrameGang, Runner
from streamsynth.engine.sampler import SamplingParams
from streamsynth.errors import StreamSynthError
from streamsynth.models.llama.detokenise import TokenBytes
from streamsynth.models.llama.generator import Generation, Piece, TextGenerator, TextRequest
from streamsynth.models.llama.model import LlamaModel

GREEDY = SamplingParams(temperature=0.0)
LIVELY = SamplingParams(temperature=1.0, top_k=4, seed=11)
PROMPTS = ([3, 14, 15, 9, 26], [7, 8, 7, 8, 7], [50, 40, 30, 20, 10], [5])


def test_the_longest_ending_that_occurred_is_followed_as_it_was_the_last_time() -> None:
    said = [1, 2, 3, 9, 2, 3, 5, 1, 2, 3]
    assert Lookup(Guessing(most=4), said).guess(2) == [9, 2]
    assert Lookup(Guessing(most=4, longest=2), said).guess(2) == [5, 1]


def test_an_ending_that_never_occurred_is_no_guess() -> None:
    assert Lookup(Guessing(most=4), [1, 2, 3]).guess(4) == []
    assert Lookup(Guessing(most=4, shortest=2), [1, 2, 3, 4, 2]).guess(4) == []
    assert Lookup(Guessing(most=4), []).guess(4) == []


def test_a_guess_that_reaches_the_end_goes_on_with_itself() -> None:
    assert Lookup(Guessing(most=7), [4, 1, 2, 1, 2]).guess(7) == [1, 2, 1, 2, 1, 2, 1]


def test_texts_share_the_positions_of_a_step() -> None:
    guessing = Guessing(most=7, positions=16)
    assert [guessing.each(texts) for texts in (1, 2, 4, 8, 16, 40)] == [7, 7, 3, 1, 0, 0]


@pytest.mark.parametrize(("most", "shortest", "named"), [(-1, 1, "guesses"), (1, 0, "shortest"), (1, 4, "shortest")])
def test_numbers_that_cannot_be_are_refused_by_name(most: int, shortest: int, named: str) -> None:
    with pytest.raises(StreamSynthError) as raised:
        Guessing(most=most, shortest=shortest)
    assert raised.value.param == named


class Counting:
    """A runner that counts its passes and the positions in them."""

    busy = False

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.passes = 0
        self.positions: list[int] = []

    def step(self, plan: Plan, gangs: dict[Row, FrameGang]) -> list[Drawn]:
        self.passes += bool(plan.spans)
        self.positions.append(sum(span.count for span in plan.spans))
        return self._runner.step(plan, gangs)


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    return ours(reference_model("llama"))


class Told(Lookup):
    """Guesses what it was told that the text will say, wrong in every third place."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text, self._at = text, 0

    def push(self, token: int) -> None:
        self._at += 1

    def guess(self, count: int) -> list[int]:
        ahead = range(self._at, min(self._at + count, len(self._text)))
        return [(self._text[place] + (place % 3 == 2)) % VOCABULARY for place in ahead]


def speak(
    model: LlamaModel,
    sampling: SamplingParams,
    guessing: Guessing | None,
    told: Sequence[Sequence[int]] = (),
    *,
    count: int = 60,
    pages: int = 400,
) -> tuple[list[list[int]], Counting, Planner]:
    """All prompts in one batch, each joining two steps after the one before."""
    planner = Planner(PagePool(pages), page_size=PAGE_SIZE, max_rows=8, max_tokens=32)
    runner = Counting(Runner(model, page_memory(model, pages)))
    tokens = TokenBytes(letters())
    texts = TextGenerator(model.config, tokens, runner, planner, page_size=PAGE_SIZE, guessing=guessing)
    running: list[Generation] = []
    said: dict[Generation, list[int]] = {}

    def step() -> bool:
        made = texts.step(running)
        for generation, piece in made:
            assert isinstance(piece, Piece)
            said.setdefault(generation, []).append(piece.token)
        return bool(made)

    for number, prompt in enumerate(PROMPTS):
        asked = TextRequest(prompt=prompt, max_tokens=count, sampling=sampling, stop_tokens=frozenset())
        running.append(texts.open(asked))
        if told:
            running[-1]._lookup = Told(told[number])
        step()
        step()
    while step():
        pass
    planner.check()
    return [said[generation] for generation in running], runner, planner


@pytest.mark.parametrize("sampling", [GREEDY, LIVELY], ids=["greedy", "drawn"])
def test_a_text_that_guesses_says_the_same_in_fewer_passes(model: LlamaModel, sampling: SamplingParams) -> None:
    """Guesses right and wrong, over page ends, beside texts that join and leave; noise is a function of the place."""
    plain, one_by_one, _ = speak(model, sampling, None)
    told, guessing, _ = speak(model, sampling, Guessing(most=5, positions=32), plain)
    assert told == plain
    assert guessing.passes < 0.55 * one_by_one.passes
    own, looked, _ = speak(model, sampling, Guessing(most=5))
    assert own == plain
    assert looked.passes <= one_by_one.passes


def test_guesses_take_no_page_that_another_text_needs(model: LlamaModel) -> None:
    """A pool that is barely large enough: what is said stays the same, and all pages come back."""
    plain, _, _ = speak(model, GREEDY, None, count=30)
    told, _, planner = speak(model, GREEDY, Guessing(most=5, positions=32), plain, count=30, pages=14)
    assert told == plain
    assert planner.free_pages == 13


def test_prompts_shorter_than_a_page_share_nothing_when_they_return(model: LlamaModel) -> None:
    """One is preempted and computed again, after the first page of another was published."""
    plain, _, _ = speak(model, GREEDY, None, count=30)
    crowded, _, planner = speak(model, GREEDY, None, count=30, pages=14)
    assert planner.preemptions
    assert crowded == plain


def test_a_step_stays_within_its_positions(model: LlamaModel) -> None:
    plain, _, _ = speak(model, GREEDY, None)
    _, runner, _ = speak(model, GREEDY, Guessing(most=5, positions=12), plain)
    assert max(runner.positions[8:]) <= 12


def test_masks_penalties_and_log_probabilities_are_made_one_by_one(model: LlamaModel) -> None:
    planner = Planner(PagePool(50), page_size=PAGE_SIZE, max_rows=8, max_tokens=32)
    runner = Counting(Runner(model, page_memory(model, 50)))
    tokens = TokenBytes(letters())
    texts = TextGenerator(
        model.config, tokens, runner, planner, page_size=PAGE_SIZE, guessing=Guessing(most=5, shortest=1)
    )
    allowed = torch.zeros(VOCABULARY, dtype=torch.bool)
    allowed[9] = True
    request = TextRequest(prompt=[9, 9, 9], max_tokens=6, sampling=GREEDY, allowed=allowed, stop_tokens=frozenset())
    generation = texts.open(request)
    while texts.step([generation]):
        pass
    assert (generation.finish_reason, runner.passes) == ("length", 6)
