"""From latent frames to pictures, to the picture."""

from hypothesis import given
from hypothesis import strategies as st

from streamsynth.engine.rollout.clock import PictureClock

clocks = st.builds(
    lambda chunk, stride, causal: PictureClock(chunk=chunk, stride=stride, first=1 if causal else stride),
    chunk=st.integers(1, 4),
    stride=st.integers(1, 4),
    causal=st.booleans(),
)


def test_wan_makes_one_picture_of_the_first_latent_frame_and_four_of_each_other() -> None:
    """V33: T latent frames are exactly 1 + 4 (T - 1) pictures."""
    clock = PictureClock(chunk=3, stride=4, first=1)
    assert [clock.pictures(chunk) for chunk in range(3)] == [9, 12, 12]
    assert clock.pictures_of(21) == 81


@given(clock=clocks, limit=st.integers(1, 200))
def test_a_limit_is_met_exactly_by_its_chunks_and_not_by_one_less(clock: PictureClock, limit: int) -> None:
    chunks = clock.chunks(limit)
    assert sum(clock.pictures(chunk, limit) for chunk in range(chunks)) == limit
    assert clock.first_picture(chunks - 1) < limit
    assert clock.pictures(chunks, limit) == 0
