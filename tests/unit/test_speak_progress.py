"""What `speak` reports: first audio from the first text, RTF only where nobody else sets the pace."""

from __future__ import annotations

import io

from streamsynth.speak_progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def speak(out: io.StringIO, *, paced: bool) -> str:
    times = iter([0.0, 1.5, 2.0, 2.05, 3.0])
    progress = Progress(out, paced=paced, clock=lambda: next(times))
    progress.ready()
    progress.text_sent()
    progress.text_sent()
    progress.audio_made(2400, 24_000)
    progress.audio_made(0, 24_000)
    progress.audio_made(45_600, 24_000)
    progress.report()
    return out.getvalue()


def test_a_pipe_gets_one_line() -> None:
    assert speak(io.StringIO(), paced=False) == (
        "first audio 50 ms, 2.00 s of audio in 1.00 s (RTF 0.50), 2 chunks, ready after 1.50 s\n"
    )


def test_where_text_or_listener_set_the_pace_there_is_no_rtf() -> None:
    assert "RTF" not in speak(io.StringIO(), paced=True)


def test_a_terminal_sees_one_line_move() -> None:
    shown = speak(Terminal(), paced=False)
    assert shown.count("\n") == 1
    assert shown.startswith("\rfirst audio 50 ms, 0.10 s of audio in 0.05 s")


def test_nothing_said_is_said() -> None:
    out = io.StringIO()
    progress = Progress(out, paced=False, clock=lambda: 0.0)
    progress.ready()
    progress.text_sent()
    progress.note("a remark")
    progress.report()
    assert out.getvalue() == "note: a remark\nthere was nothing to say, ready after 0.00 s\n"
