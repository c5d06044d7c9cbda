"""What a viewer of a video is said to have seen."""

from streamsynth.bench.watcher import Watcher

MS = 1_000_000


def watched(*at_ms: int, chunk_ms: int = 100) -> Watcher:
    watcher = Watcher(0)
    for chunk, at in enumerate(at_ms):
        watcher.media(chunk, 4, chunk * chunk_ms * MS, (chunk + 1) * chunk_ms * MS, (), at * MS)
    watcher.close()
    return watcher


def test_chunks_in_time_are_not_late_and_stall_nobody() -> None:
    watcher = watched(50, 150, 240, 350)
    assert watcher.lateness_ns() == [0, 0, 0, 0]
    assert watcher.stalls(1) == watcher.stalls(2) == 0
    assert watcher.between_ns() == [100 * MS, 90 * MS, 110 * MS]


def test_one_late_chunk_is_one_stall_for_a_player_with_one_chunk_and_none_with_two() -> None:
    """The chunks after it come 60 ms after their places, which the player's clock, moved on, no longer sees."""
    watcher = watched(50, 210, 310, 410)
    assert watcher.lateness_ns() == [0, 60 * MS, 60 * MS, 60 * MS]
    assert watcher.stalls(1) == 1 and watcher.stalls(2) == 0


def test_a_chunk_counts_once_its_last_payload_is_there() -> None:
    watcher = Watcher(0)
    watcher.media(0, 2, 0, 50 * MS, (), 10 * MS)
    watcher.media(0, 2, 50 * MS, 100 * MS, (), 30 * MS)
    watcher.media(1, 4, 100 * MS, 200 * MS, (), 120 * MS)
    watcher.close()
    assert [arrival.at_ns for arrival in watcher.arrivals] == [30 * MS, 120 * MS]
    assert watcher.first_payload_ns == 10 * MS and watcher.frames == 8


def test_a_steer_is_delivered_with_the_first_payload_that_it_affects() -> None:
    watcher = Watcher(0)
    watcher.steered("e", 5 * MS)
    watcher.queued("e", 6 * MS)
    watcher.applied("e", 20 * MS)
    watcher.media(3, 4, 0, 100 * MS, ("e",), 40 * MS)
    steer = watcher.steers["e"]
    assert (steer.queued_ns, steer.applied_ns, steer.delivered_ns) == (6 * MS, 20 * MS, 40 * MS)
