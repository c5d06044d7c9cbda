"""What reaches the loudspeaker, sample by sample, against the sine engine's known phase."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from ear import HEARABLE, QUANTUM, Ear
from opening import OpenPage

from streamsynth.testing.sine import AMPLITUDE, sine

pytestmark = pytest.mark.browser

RATE = 24_000
SAMPLES_PER_CHARACTER = 1200
FADE_SECONDS = 0.005
FADE_FRAMES = round(RATE * FADE_SECONDS)
START_FRAMES = 1440
HALF_LSB = 0.5 / 32768 + 1e-6
STEEPEST = AMPLITUDE * 2 * np.pi * 440 / RATE
"""The largest step between neighbouring samples of the tone."""


def faded(tone: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The tone with the terminal fade of the reference's playback worklet."""
    gain = np.ones(tone.size, dtype=np.float32)
    gain[-FADE_FRAMES:] = np.arange(FADE_FRAMES - 1, -1, -1) / (FADE_FRAMES - 1)
    return tone * gain


def check_played_whole(ear: Ear, part: dict[str, Any]) -> None:
    """The part was played from its first sample to its last, each of them once, without a gap on the audio clock."""
    playback = part["playback"]
    assert part["status"] == "completed"
    assert playback["played"] == part["samples"] == part["total"]
    assert playback["underruns"] == 0
    assert playback["frame"] - playback["firstFrame"] == part["total"]
    heard = ear.heard(playback["firstFrame"], part["total"])
    wrong = np.flatnonzero(np.abs(heard - faded(sine(0, part["total"]))) > HALF_LSB)
    assert not len(wrong), f"{len(wrong)} samples, {wrong[0]} to {wrong[-1]}, are not what was made"


def test_an_utterance_is_heard_sample_by_sample(patient_ear: Ear) -> None:
    """S1, S2: played samples equal `total_samples`, no underrun or gap, one phase, silence around it."""
    text = "A tone of known phase and length"
    patient_ear.type_text(text)
    patient_ear.page.keyboard.press("Enter")
    patient_ear.wait_until_silent()
    [take] = patient_ear.takes()
    [part] = take["parts"]
    assert part["total"] == len(text) * SAMPLES_PER_CHARACTER
    check_played_whole(patient_ear, part)
    start, end = part["playback"]["firstFrame"], part["playback"]["frame"]
    assert not patient_ear.heard(start - 4 * QUANTUM, 4 * QUANTUM).any()
    assert not patient_ear.heard(end, 10 * QUANTUM).any()


def test_typing_goes_on_while_it_speaks(patient_ear: Ear) -> None:
    """A finished sentence is heard while the next one is typed; both are utterances of one take on one socket."""
    texts = ["This sentence takes a while to say. ", "And this one is typed meanwhile. "]
    patient_ear.type_text(texts[0])
    patient_ear.wait_until_heard()
    patient_ear.type_text(texts[1])
    assert patient_ear.page.evaluate("() => streamsynth.heard()?.part.text") == texts[0]
    patient_ear.page.keyboard.press("Enter")
    patient_ear.wait_until_silent()
    [take] = patient_ear.takes()
    assert [part["text"] for part in take["parts"]] == texts
    for part in take["parts"]:
        check_played_whole(patient_ear, part)
    first, second = (part["playback"] for part in take["parts"])
    assert second["firstFrame"] >= first["frame"]
    assert patient_ear.page.evaluate("() => streamsynth.wire.connections") == 1
    assert patient_ear.underruns() == 0


def test_several_takes_are_heard_in_order_on_one_socket(patient_ear: Ear) -> None:
    texts = ["One, two", "Three, four, five", "Six"]
    for text in texts:
        patient_ear.type_text(text)
        patient_ear.page.keyboard.press("Enter")
    patient_ear.wait_until_silent()
    takes = patient_ear.takes()
    assert [take["text"] for take in takes] == texts
    parts = [part for take in takes for part in take["parts"]]
    for part in parts:
        check_played_whole(patient_ear, part)
    ends = [part["playback"]["frame"] for part in parts]
    starts = [part["playback"]["firstFrame"] for part in parts]
    assert all(start >= end for start, end in zip(starts[1:], ends, strict=False))
    assert patient_ear.page.evaluate("() => streamsynth.wire.connections") == 1


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_silences_the_whole_scheduled_tail_within_one_quantum(ear: Ear, how: str) -> None:
    """S50: with more than 3 s buffered, one quantum of decay is all that follows a stop, and nothing after the ack."""
    ear.paste("A long text that is far ahead of the loudspeaker. " * 4)
    ear.page.wait_for_function("() => streamsynth.heard() && streamsynth.player.status.buffered > 3 * 24000")
    if how == "button":
        ear.page.get_by_role("button", name="Stop", exact=True).click()
    else:
        ear.page.keyboard.press("Escape")
    ear.wait_until_silent()
    ear.wait_quanta(100)
    [reset] = ear.reports("reset")
    assert reset["dropped"] > 3 * RATE
    decay = ear.heard(reset["frame"], QUANTUM)
    assert decay[-1] == 0
    assert np.abs(np.diff(decay)).max() <= AMPLITUDE / FADE_FRAMES + 1e-6
    assert not ear.heard(reset["frame"] + QUANTUM, 100 * QUANTUM).any()
    [take] = ear.takes()
    assert take["stoppedAt"] > 0
    assert ear.page.evaluate("() => streamsynth.wire.framesAfterAck") == 0
    assert ear.page.evaluate("() => streamsynth.player.status.buffered") == 0


def test_what_is_typed_right_after_a_stop_is_heard_alone(patient_ear: Ear) -> None:
    """S37, S38: stop before the first audio, and new text at once: only the new text is heard."""
    patient_ear.paste("{stall 0}Nobody hears this, it is stopped at once. ")
    patient_ear.page.keyboard.press("Escape")
    patient_ear.type_text("This is heard")
    patient_ear.page.keyboard.press("Enter")
    patient_ear.wait_until_silent()
    stopped, spoken = patient_ear.takes()
    assert stopped["parts"][0]["status"] == "cancelled"
    check_played_whole(patient_ear, spoken["parts"][0])
    started = patient_ear.reports("started")
    assert [report["frame"] for report in started] == [spoken["parts"][0]["playback"]["firstFrame"]]


def test_an_underrun_is_counted_bridged_without_a_click_and_makes_the_start_buffer_grow(ear: Ear) -> None:
    """Half a second of audio every 0.7 s leaves gaps; each decays and comes back without a step, no sample is lost."""
    text = "Slower than it plays, so that it runs dry"
    ear.type_text("{delay 700}" + text)
    ear.page.keyboard.press("Enter")
    ear.wait_until_silent()
    [take] = ear.takes()
    [part] = take["parts"]
    playback = part["playback"]
    assert playback["played"] == part["total"] == len(text) * SAMPLES_PER_CHARACTER
    assert playback["underruns"] == len(ear.reports("underrun")) == ear.underruns() > 0
    assert START_FRAMES < ear.page.evaluate("() => streamsynth.player.status.startFrames") <= 8 * START_FRAMES
    heard = ear.heard(playback["firstFrame"], playback["frame"] - playback["firstFrame"] + 2 * QUANTUM)
    assert np.abs(np.diff(heard)).max() <= STEEPEST + AMPLITUDE / FADE_FRAMES
    assert ear.page.locator("#meter-underruns").inner_text() == str(playback["underruns"])


def test_audio_is_heard_while_it_is_being_made(ear: Ear) -> None:
    """The first chunk fills the start buffer of 60 ms, so the first sample is heard before the last one exists."""
    assert ear.page.evaluate("() => streamsynth.player.status.startFrames") in (0, START_FRAMES)
    ear.type_text("{delay 400}Paced like speech, chunk by chunk, and heard at once")
    ear.page.keyboard.press("Enter")
    ear.wait_until_heard()
    assert ear.page.evaluate("() => streamsynth.takes[0].making")


def test_server_time_and_audible_time_are_shown_apart(ear: Ear) -> None:
    """The second includes the first, the start buffer and the output's delay."""
    ear.type_text("How long does it take")
    ear.page.keyboard.press("Enter")
    ear.wait_until_silent()
    [take] = ear.takes()
    assert 0 < take["firstAudioMs"] < take["audibleMs"]
    shown = [ear.page.locator(f"#meter-{name}").inner_text() for name in ("first", "audible")]
    assert shown == [f"{round(take['firstAudioMs'])} ms", f"{round(take['audibleMs'])} ms"]


def test_a_browser_that_opens_no_24_khz_output_gets_the_rate_it_has_from_the_server(
    open_page: OpenPage, sine_server: str
) -> None:
    """The server resamples, statefully: the tone keeps its phase at the browser's own rate, sample by sample."""
    refuse = """
      const Context = window.AudioContext;
      window.AudioContext = function (options) {
        if (options?.sampleRate === 24000) throw new DOMException("no such rate", "NotSupportedError");
        return new Context(options);
      };
    """
    ear = Ear(open_page(sine_server, before=refuse, start_seconds=60, **HEARABLE))
    rate = ear.page.evaluate("() => streamsynth.player.sampleRate")
    assert rate in (44_100, 48_000)
    text = "Another rate, the same tone"
    ear.type_text(text)
    ear.page.keyboard.press("Enter")
    ear.wait_until_silent()
    [take] = ear.takes()
    [part] = take["parts"]
    playback = part["playback"]
    assert part["total"] == round(len(text) * SAMPLES_PER_CHARACTER * rate / RATE)
    assert playback["played"] == part["total"] == playback["frame"] - playback["firstFrame"]
    recording = ear.recording(0)
    inner = slice(rate // 50, -rate // 50)  # soxr rings where the tone begins and ends
    expected = sine(0, part["total"], sample_rate=rate)
    # At 44.1 kHz soxr's samples lie a twenty-fifth of one late.
    assert np.abs(recording[inner] - expected[inner]).max() <= 1.5e-3
    heard = ear.heard(playback["firstFrame"], part["total"])
    fade = round(rate * FADE_SECONDS)
    assert np.array_equal(heard[:-fade], recording[:-fade])


def test_a_replay_is_the_recording(ear: Ear) -> None:
    ear.type_text("Say it again")
    ear.page.keyboard.press("Enter")
    ear.wait_until_silent()
    [take] = ear.takes()
    total = take["parts"][0]["total"]
    ear.page.get_by_role("button", name="Replay: Say it again").click()
    ear.page.wait_for_function("() => ear.reports.filter(({ type }) => type === 'drained').length === 2")
    ear.wait_quanta(20)
    replay = ear.reports("drained")[-1]
    assert replay["played"] == total == replay["frame"] - replay["firstFrame"]
    heard = ear.heard(replay["firstFrame"], total)
    assert np.abs(heard - faded(sine(0, total))).max() <= HALF_LSB
