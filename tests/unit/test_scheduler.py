"""Which request steps next."""

from streamsynth.engine.scheduler import RELAXED_LEAD_S, STUCK_AFTER_S, Entry, Scheduler
from streamsynth.engine.stream import Emission

RATE = 1000


class FakeStream:
    """Ready at a fixed time, or waiting for text."""

    def __init__(self, wake: float | None = 0.0) -> None:
        self.wake = wake

    def push(self, text: str) -> None: ...
    def finish(self) -> None: ...
    def wake_at(self) -> float | None:
        return self.wake

    def step(self) -> Emission | None: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...


def scheduler(**streams: FakeStream) -> Scheduler[str]:
    made: Scheduler[str] = Scheduler()
    for name, stream in streams.items():
        made.add(Entry(name, stream, granted=10_000))
    return made


def test_the_least_media_lead_steps_first_and_a_new_request_counts_as_zero() -> None:
    queue = scheduler(ahead=FakeStream(), late=FakeStream(), new=FakeStream())
    queue.entries["ahead"].made(2000, RATE, now=10.0)
    queue.entries["late"].made(500, RATE, now=10.0)
    assert queue.runnable(11.0)[0][0] is queue.entries["late"]
    queue.entries["late"].made(1000, RATE, now=11.0)
    assert queue.runnable(11.0)[0][0] is queue.entries["new"]


def test_equal_leads_go_in_the_order_of_arrival() -> None:
    queue = scheduler(first=FakeStream(), second=FakeStream())
    assert queue.runnable(1.0)[0][0] is queue.entries["first"]


def test_without_credit_a_request_does_not_run() -> None:
    queue = scheduler(only=FakeStream())
    queue.entries["only"].granted = 100
    queue.entries["only"].made(100, RATE, now=1.0)
    assert queue.runnable(1.0) == ([], None)
    queue.entries["only"].granted = 101
    assert queue.runnable(1.0)[0][0] is queue.entries["only"]


def test_a_request_that_waits_for_text_does_not_run() -> None:
    assert scheduler(only=FakeStream(None)).runnable(1.0) == ([], None)


def test_the_next_wake_is_the_earliest_of_those_not_ready_yet() -> None:
    assert scheduler(a=FakeStream(7.0), b=FakeStream(5.0), c=FakeStream(None)).runnable(1.0) == ([], 5.0)


def test_a_step_without_output_lets_the_others_run_first() -> None:
    queue = scheduler(silent=FakeStream(), other=FakeStream())
    queue.entries["silent"].made_nothing(now=1.0)
    assert queue.runnable(1.0)[0][0] is queue.entries["other"]


def test_a_request_that_could_run_but_makes_nothing_is_stalled() -> None:
    """S55: the watchdog is per request and counts only the time in which it was runnable."""
    queue = scheduler(silent=FakeStream(), waiting=FakeStream(None))
    queue.runnable(1.0)
    assert queue.stalled(30.9, 30.0) == []
    assert queue.stalled(31.0, 30.0) == [queue.entries["silent"]]
    queue.entries["silent"].made(1, RATE, now=31.0)
    queue.runnable(31.0)
    assert queue.stalled(60.9, 30.0) == []


def test_a_request_that_is_stepped_in_vain_is_stuck_one_that_waits_for_its_turn_is_not() -> None:
    """S55: a full worker is loaded, not unready."""
    queue = scheduler(silent=FakeStream(), waiting=FakeStream())
    for second in range(1, 21):
        queue.runnable(second)
        queue.entries["silent"].made_nothing(second)
    assert queue.stuck_s(21.0) == 20.0
    queue.entries["silent"].made(1, RATE, now=21.0)
    assert queue.stuck_s(21.0) == 0.0


def test_a_step_that_leaves_a_request_out_counts_as_in_vain() -> None:
    queue = scheduler(left=FakeStream())
    queue.runnable(1.0)
    queue.entries["left"].left_out(1.0)
    queue.entries["left"].left_out(2.0)
    assert queue.stuck_s(3.0) == 2.0
    assert queue.runnable(3.0)[0] == [queue.entries["left"]], "no pause: the next step may be its own"


def test_a_stuck_request_does_not_count_as_late() -> None:
    """S55: one degenerate request must not keep everybody else out until it is given up."""
    queue = scheduler(stuck=FakeStream(), late=FakeStream())
    for name in ("stuck", "late"):
        queue.entries[name].made(1000, RATE, now=0.0)
    for now in (3.0, 3.5, 4.0, 5.0):
        queue.runnable(now)
        queue.entries["stuck"].made_nothing(now)
    queue.entries["late"].made(3500, RATE, now=5.0)
    queue.runnable(5.0)
    assert queue.behind_s(5.0) == 0.5


def test_empty_emissions_are_no_progress() -> None:
    """S55: an engine that emits chunks of nothing for ever is as stuck as one that emits none."""
    queue = scheduler(empty=FakeStream(), other=FakeStream(None))
    for second in range(1, 32):
        assert queue.runnable(second)[0] == [queue.entries["empty"]]
        queue.entries["empty"].made(0, RATE, now=second)
    assert queue.stalled(31.0, 30.0) == [queue.entries["empty"]]


def test_a_request_without_credit_is_not_stalled() -> None:
    queue = scheduler(only=FakeStream())
    queue.runnable(1.0)
    queue.entries["only"].granted = 0
    queue.runnable(2.0)
    assert queue.stalled(100.0, 30.0) == []


def test_behind_is_how_late_the_most_starved_runnable_request_is() -> None:
    queue = scheduler(a=FakeStream(), b=FakeStream())
    queue.entries["a"].made(1000, RATE, now=0.0)
    queue.entries["b"].made(3000, RATE, now=0.0)
    queue.runnable(4.0)
    assert queue.behind_s(4.0) == 3.0
    assert queue.behind_s(0.5) == 0.0


def test_who_reads_or_waits_to_be_stepped_is_demand_who_stopped_reading_or_writing_is_not() -> None:
    queue = scheduler(runs=FakeStream(), paced=FakeStream(50.0), silent=FakeStream(None), full=FakeStream())
    assert queue.demand(1.0) == 3
    queue.entries["full"].made(10_000, RATE, now=1.0)
    assert queue.demand(2.9) == 3, "its reader may come back for more"
    assert queue.demand(3.0) == 2
    queue.entries["full"].granted += 1
    assert queue.demand(3.0) == 3


def test_who_is_far_ahead_stays_out_of_the_steps_of_one_who_has_heard_nothing() -> None:
    queue = scheduler(ahead=FakeStream(), near=FakeStream(), new=FakeStream())
    queue.entries["ahead"].made(int(RELAXED_LEAD_S * RATE) + 1000, RATE, now=10.0)
    queue.entries["near"].made(int(RELAXED_LEAD_S * RATE) + 500, RATE, now=10.0)
    stepped = [entry.key for entry in queue.runnable(10.6)[0]]
    assert stepped == ["new", "near"]
    queue.entries["new"].made(500, RATE, now=10.6)
    assert [entry.key for entry in queue.runnable(10.6)[0]] == ["new", "near", "ahead"]


def test_one_who_is_stuck_keeps_nobody_out() -> None:
    queue = scheduler(ahead=FakeStream(), stuck=FakeStream())
    queue.entries["ahead"].made(5000, RATE, now=10.0)
    queue.entries["stuck"].left_out(10.0)
    assert len(queue.runnable(10.5)[0]) == 1
    assert len(queue.runnable(10.0 + STUCK_AFTER_S)[0]) == 2


def test_a_request_that_comes_nearer_to_its_first_output_is_not_stalled() -> None:
    queue = scheduler(only=FakeStream())
    queue.runnable(1.0)
    queue.entries["only"].worked(25.0)
    assert queue.stalled(40.0, 30.0) == []
    assert queue.stalled(55.0, 30.0) == [queue.entries["only"]]


def test_where_nobody_plays_what_is_made_all_wait_alike_and_none_is_late() -> None:
    """A clip that is being handed out is not held up by one that has made nothing for minutes."""
    queue = scheduler(done=FakeStream(), new=FakeStream())
    queue.played = False
    queue.entries["done"].made(10 * RATE, RATE, now=1.0)
    queue.entries["done"].granted = 100 * RATE
    assert queue.runnable(2.0)[0] == [queue.entries["done"], queue.entries["new"]]
    assert queue.behind_s(100.0) == 0.0
