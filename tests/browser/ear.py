"""Listens to the page: every sample that its player puts out, and every report of its audio thread."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Page

HEARABLE = {"bypass_csp": True}
"""Options of a browser context in which an Ear can be used."""

QUANTUM = 128

# Keeps what it hears on the audio thread, and answers questions about it: the main thread has the page to run.
_RECORDER = """
registerProcessor("test-recorder", class extends AudioWorkletProcessor {
  constructor() {
    super();
    this.quanta = [];
    this.next = 0;
    this.port.onmessage = ({ data: [first, frames] }) => this.port.postMessage(this.cut(first, frames));
  }
  process([input]) {
    // As in the player: chromium now and then gives neighbouring quanta one time.
    const frame = Math.max(currentFrame, this.next);
    if (input.length > 0) this.quanta.push({ frame, samples: input[0].slice() });
    this.next = frame + 128;
    return true;
  }
  cut(first, frames) {
    const samples = new Float32Array(frames);
    let recorded = 0;
    for (const { frame, samples: heard } of this.quanta) {
      const from = Math.max(first, frame);
      const to = Math.min(first + frames, frame + heard.length);
      if (from >= to) continue;
      samples.set(heard.subarray(from - frame, to - frame), from - first);
      recorded += to - from;
    }
    return { samples, recorded };
  }
});
"""

_LISTEN = """async (source) => {
  await streamsynth.prepare();
  const { node, context } = streamsynth.player;
  await context.audioWorklet.addModule(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const recorder = new AudioWorkletNode(context, "test-recorder");
  window.ear = { recorder, reports: [] };
  node.port.addEventListener("message", ({ data }) => data.type !== "status" && ear.reports.push(data));
  node.connect(recorder).connect(new GainNode(context, { gain: 0 })).connect(context.destination);
}"""

_AS_TEXT = """
  const asText = (samples) => {
    const bytes = new Uint8Array(samples.buffer);
    let text = "";
    for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
    return btoa(text);
  };
"""

_HEARD = f"""async (range) => {{{_AS_TEXT}
  const answer = new Promise((resolve) => (ear.recorder.port.onmessage = ({{ data }}) => resolve(data)));
  ear.recorder.port.postMessage(range);
  const {{ samples, recorded }} = await answer;
  return {{ recorded, data: asText(samples) }};
}}"""

_RECORDING = f"""(take) => {{{_AS_TEXT}
  return asText(streamsynth.takes[take].recording());
}}"""

# What the tests ask of a take, as plain values.
_TAKES = """() => streamsynth.takes.map((take) => ({
  text: take.text,
  samples: take.samples,
  stoppedAt: take.stoppedAt,
  error: take.error,
  firstAudioMs: take.firstAudioMs,
  audibleMs: take.audibleMs,
  parts: take.parts.map(({ text, samples, playback, status, totalSamples }) => ({
    text, samples, playback, status, total: totalSamples,
  })),
}))"""


class Ear:
    """Wraps a page that is open; recording starts with it.

    The page's content security policy refuses a recorder, so it has to be opened with `HEARABLE`.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        page.evaluate(_LISTEN, _RECORDER)
        self.wait_quanta(1)

    def type_text(self, text: str) -> None:
        self.page.locator("#text").press_sequentially(text)

    def paste(self, text: str) -> None:
        """What a browser does on Ctrl+V in the box."""
        self.page.locator("#text").focus()
        self.page.evaluate(
            """(text) => {
              const box = document.activeElement;
              box.setRangeText(text, box.selectionStart, box.selectionEnd, "end");
              box.dispatchEvent(new InputEvent("input", { inputType: "insertFromPaste", bubbles: true }));
            }""",
            text,
        )

    def wait_until_silent(self) -> None:
        """Until everything that was asked for was played or dropped, and the recorder has heard the end."""
        self.page.wait_for_function("() => !streamsynth.speaking && streamsynth.takes.every((take) => !take.making)")
        self.wait_quanta(20)

    def wait_until_heard(self) -> None:
        self.page.wait_for_function("() => streamsynth.heard() !== null")

    def wait_quanta(self, count: int) -> None:
        """Until so many quanta of audio have gone by."""
        context = "streamsynth.player.context"
        until = self.page.evaluate(
            f"(frames) => {context}.currentTime + frames / {context}.sampleRate", count * QUANTUM
        )
        self.page.wait_for_function(f"(until) => {context}.currentTime > until", arg=until)

    def takes(self) -> list[dict[str, Any]]:
        takes: list[dict[str, Any]] = self.page.evaluate(_TAKES)
        return takes

    def reports(self, kind: str) -> list[dict[str, Any]]:
        only = "(kind) => ear.reports.filter(({ type }) => type === kind)"
        reports: list[dict[str, Any]] = self.page.evaluate(only, kind)
        return reports

    def underruns(self) -> int:
        return int(self.page.evaluate("() => streamsynth.underruns"))

    def recording(self, take: int) -> npt.NDArray[np.float32]:
        """What the page keeps of its `take`-th take, scaled to full scale 1.0."""
        samples = np.frombuffer(base64.b64decode(self.page.evaluate(_RECORDING, take)), dtype="<i2")
        return samples.astype(np.float32) / 32768

    def heard(self, first_frame: int, frames: int) -> npt.NDArray[np.float32]:
        """What came out on `frames` frames of the audio clock from `first_frame` on."""
        answer = self.page.evaluate(_HEARD, [first_frame, frames])
        assert answer["recorded"] == frames, "the audio thread skipped a quantum, or the recorder was not there yet"
        return np.frombuffer(base64.b64decode(answer["data"]), dtype="<f4")
