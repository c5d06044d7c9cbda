"""The window of latent frames that a rollout attends to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsynth.engine.rollout.window import FrameWindow, PromptVersion, WindowPolicy

policies = st.builds(
    lambda chunk, sink, rest: WindowPolicy(frames=chunk * (sink + rest), sink=chunk * sink, chunk=chunk),
    chunk=st.integers(1, 4),
    sink=st.integers(0, 3),
    rest=st.integers(2, 5),
)


def rolled(policy: WindowPolicy, chunks: int, prompt: int = 0) -> FrameWindow:
    window = FrameWindow(policy)
    for _ in range(chunks):
        window.commit(window.places_to_write(), PromptVersion(prompt))
    return window


@given(policy=policies, chunks=st.integers(0, 40))
def test_keeps_the_sink_and_the_latest_frames_within_the_window_less_the_chunk_being_made(
    policy: WindowPolicy, chunks: int
) -> None:
    window = rolled(policy, chunks)
    made = chunks * policy.chunk
    sink = list(range(min(made, policy.sink)))
    room = policy.frames - policy.chunk - policy.sink
    latest = list(range(max(policy.sink, made - room), made))
    assert [frame.index for frame in window.kept] == sink + latest
    assert window.next_index == made


@given(policy=policies, chunks=st.integers(1, 40))
def test_what_is_written_never_lies_where_a_kept_frame_does(policy: WindowPolicy, chunks: int) -> None:
    """V11: the place of a frame is another thing than its index, and is used again."""
    window = FrameWindow(policy)
    for _ in range(chunks):
        places = window.places_to_write()
        assert not {frame.place for frame in window.kept} & set(places)
        window.commit(places, PromptVersion(0))
    assert len({frame.place for frame in window.kept}) == len(window.kept)
    assert all(0 <= frame.place < policy.frames for frame in window.kept)


def test_rotary_positions_stay_inside_the_window_for_ten_thousand_chunks() -> None:
    """V11: the absolute index may grow for ever, the model's positions may not."""
    window = rolled(WindowPolicy(frames=12, sink=3, chunk=3), 10_000)
    assert window.next_index == 30_000
    assert window.rotary_start == 9


@pytest.mark.parametrize("sink", [0, 3])
def test_a_recache_leaves_no_frame_of_the_old_prompt_but_in_the_sink(sink: int) -> None:
    """V01, V03: with a sink and without one."""
    window = rolled(WindowPolicy(frames=12, sink=sink, chunk=3), 7)
    for chunk in window.chunks_to_recache():
        window.recached(chunk, PromptVersion(1))
    assert {frame.prompt for frame in window.sliding} == {1}
    assert {frame.prompt for frame in window.sink} == ({0} if sink else set())


def test_recaches_whole_chunks_oldest_first() -> None:
    window = rolled(WindowPolicy(frames=12, sink=3, chunk=3), 7)
    assert [[frame.index for frame in chunk] for chunk in window.chunks_to_recache()] == [[15, 16, 17], [18, 19, 20]]


def test_forgetting_drops_the_sink_and_goes_on_counting() -> None:
    window = rolled(WindowPolicy(frames=12, sink=3, chunk=3), 7)
    window.forget()
    assert window.kept == [] and window.rotary_start == 0 and window.next_index == 21


def test_a_chunk_of_another_size_is_an_error_that_names_both() -> None:
    """V13: a partial chunk is never cut or dropped."""
    window = rolled(WindowPolicy(frames=12, sink=3, chunk=3), 1)
    with pytest.raises(ValueError, match="a chunk of 2 latent frames; this rollout's have 3"):
        window.commit(window.places_to_write()[:2], PromptVersion(0))


@pytest.mark.parametrize(
    ("frames", "sink", "chunk"), [(12, 2, 3), (13, 3, 3), (6, 3, 3), (12, -3, 3), (12, 0, 0)], ids=str
)
def test_refuses_a_window_that_is_not_whole_chunks_or_too_small(frames: int, sink: int, chunk: int) -> None:
    with pytest.raises(ValueError, match="chunk"):
        WindowPolicy(frames=frames, sink=sink, chunk=chunk)
