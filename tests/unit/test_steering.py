"""The steering of a running video: what waits, when it starts, how it blends, and what is said about it."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.interactions.blender import Blender
from streamsynth.interactions.messages import Applied, Interaction, Kv, Mode, Notice, Refused, Superseded
from streamsynth.interactions.slot import MAX_APPENDED
from streamsynth.interactions.steering import BlendHandler, ChunkPlan, Steering

OLD, NEW, OTHER = Fraction(0), Fraction(3), Fraction(12)
TARGETS = {"old": OLD, "new": NEW, "other": OTHER}


def mix(source: Fraction, target: Fraction, weight: Fraction) -> Fraction:
    assert 0 < weight < 1
    return source + weight * (target - source)


class Wheel:
    """A steering wheel over one number, and the values that its chunks were made with."""

    def __init__(self) -> None:
        self.prepared: list[str] = []
        self.blender = Blender(OLD, mix)
        self.steering = Steering({"prompt": BlendHandler(self.blender, self._prepare)})
        self.chunk = 0

    def _prepare(self, prompt: str) -> Fraction:
        self.prepared.append(prompt)
        if prompt not in TARGETS:
            raise StreamSynthError(ErrorCode.UNSUPPORTED_LANGUAGE, "no word of it", param="prompt")
        return TARGETS[prompt]

    def steer(
        self,
        event_id: str,
        prompt: str = "new",
        chunks: int | None = None,
        mode: Mode = Mode.REPLACE,
        kv: Kv | None = None,
    ) -> tuple[Notice, ...]:
        return self.steering.interact(Interaction(event_id, {"prompt": prompt}, chunks, mode, kv))

    def chunks(self, count: int) -> list[ChunkPlan]:
        plans = [self.steering.next_chunk(10 * (self.chunk + k)) for k in range(count)]
        self.chunk += count
        return plans

    def values(self, count: int) -> list[Fraction]:
        values = []
        for _ in range(count):
            self.chunks(1)
            values.append(self.blender.value)
        return values


def test_a_transition_of_three_chunks_goes_by_thirds_and_arrives_in_the_third() -> None:
    """RV-7, V05: the first affected chunk is never at 0, the last exactly at the target."""
    wheel = Wheel()
    wheel.chunks(2)
    wheel.steer("a", chunks=3)
    plans, values = [], []
    for _ in range(4):
        plans += wheel.chunks(1)
        values.append(wheel.blender.value)
    assert values == [1, 2, 3, 3]
    assert [plan.report.started for plan in plans] == [("a",), (), (), ()]
    assert [plan.report.active for plan in plans] == [("a",), ("a",), ("a",), ()]
    assert [plan.report.completed for plan in plans] == [(), (), ("a",), ()]
    assert plans[0].notices == (Applied("a", 2, 20),)
    assert {plan.kv for plan in plans} == {Kv.KEEP}


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_cut_and_a_transition_of_one_are_at_the_target_in_the_next_chunk(chunks: int) -> None:
    """RV-6. A cut computes the pages anew unless told otherwise; a transition keeps them."""
    wheel = Wheel()
    wheel.steer("a", chunks=chunks)
    (plan,) = wheel.chunks(1)
    assert wheel.blender.value == NEW
    assert plan.report.started == plan.report.completed == ("a",)
    assert plan.kv is (Kv.KEEP if chunks else Kv.RECACHE)


def test_a_recache_in_a_transition_runs_once_before_the_completing_chunk() -> None:
    wheel = Wheel()
    wheel.steer("a", chunks=3, kv=Kv.RECACHE)
    assert [plan.kv for plan in wheel.chunks(4)] == [Kv.KEEP, Kv.KEEP, Kv.RECACHE, Kv.KEEP]


def test_a_new_target_starts_from_the_blend_in_force_and_ends_the_old_one() -> None:
    """RV-9: the first never completes."""
    wheel = Wheel()
    wheel.steer("a", "new", chunks=3)
    assert wheel.values(2) == [1, 2]
    wheel.steer("b", "other", chunks=2)
    (plan,) = wheel.chunks(1)
    assert wheel.blender.value == 7
    assert plan.notices == (Superseded("a", "b"), Applied("b", 2, 20))
    assert plan.report.active == ("b",)
    assert wheel.values(1) == [OTHER]


def test_a_burst_of_replacements_costs_one_start_and_names_what_replaced_each() -> None:
    """RV-8, V47."""
    wheel = Wheel()
    notices = [wheel.steer(f"e{number}") for number in range(100)]
    assert notices[1:] == [(Superseded(f"e{number}", f"e{number + 1}"),) for number in range(99)]
    (plan,) = wheel.chunks(1)
    assert plan.report.started == ("e99",)
    assert wheel.prepared == ["new"]


def test_appended_interactions_wait_for_their_predecessor_to_complete_and_are_bounded() -> None:
    wheel = Wheel()
    wheel.steer("a", chunks=2)
    for number in range(MAX_APPENDED):
        wheel.steer(f"b{number}", "other" if number % 2 else "old", chunks=1, mode=Mode.APPEND)
    with pytest.raises(StreamSynthError) as refused:
        wheel.steer("full", mode=Mode.APPEND)
    assert refused.value.code is ErrorCode.INTERACTION_QUEUE_FULL
    started = [plan.report.started for plan in wheel.chunks(4)]
    assert started == [("a",), (), ("b0",), ("b1",)]


def test_a_field_that_the_model_lacks_and_a_prompt_it_cannot_encode_are_refused_and_the_video_goes_on() -> None:
    """RV-10, RV-15."""
    wheel = Wheel()
    with pytest.raises(StreamSynthError) as refused:
        wheel.steering.interact(Interaction("a", {"seed": 1}))
    assert refused.value.code is ErrorCode.INTERACTION_FAILED
    wheel.steer("b", "gibberish")
    wheel.steer("c", "new", chunks=0, mode=Mode.APPEND)
    (plan,) = wheel.chunks(1)
    assert [type(notice) for notice in plan.notices] == [Refused, Applied]
    assert wheel.blender.value == NEW


def test_stopping_supersedes_what_is_unfinished_by_nothing() -> None:
    wheel = Wheel()
    wheel.steer("a")
    wheel.chunks(1)
    wheel.steer("b", mode=Mode.APPEND)
    assert wheel.steering.stop() == (Superseded("a", None), Superseded("b", None))
    assert wheel.steering.stop() == ()


STEPS = st.lists(
    st.one_of(
        st.none(),
        st.tuples(st.sampled_from(["old", "new", "other", "gibberish"]), st.integers(0, 4), st.sampled_from(Mode)),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_is_asked_every_interaction_has_one_fate(steps: list[tuple[str, int, Mode] | None]) -> None:
    """V08: each accepted one is refused, or superseded, or applied; applied ones complete or are superseded."""
    wheel = Wheel()
    accepted: list[str] = []
    notices: list[Notice] = []
    completed: Counter[str] = Counter()
    for number, step in enumerate([*steps, *[None] * 40]):
        if step is None:
            (plan,) = wheel.chunks(1)
            notices += plan.notices
            completed.update(plan.report.completed)
            assert OLD <= wheel.blender.value <= OTHER
            assert set(plan.report.started) | set(plan.report.completed) <= set(plan.report.active)
            assert len(plan.report.active) <= 1
            if plan.report.completed:
                assert wheel.blender.value in TARGETS.values()
        else:
            try:
                notices += wheel.steer(f"e{number}", *step)
            except StreamSynthError:
                continue
            accepted.append(f"e{number}")
    refused = Counter(notice.event_id for notice in notices if isinstance(notice, Refused))
    superseded = Counter(notice.event_id for notice in notices if isinstance(notice, Superseded))
    applied = Counter(notice.event_id for notice in notices if isinstance(notice, Applied))
    assert refused + superseded + completed == Counter(accepted)
    assert not set(applied) & set(refused)
    assert set(completed) <= set(applied)
