// DX-1..7 of the reference's playback worklet, and what the page adds: start buffer, underruns, declicking, events.

import assert from "node:assert/strict";
import { test } from "node:test";

import { PlaybackCore } from "../../../web/playback-core.js";

const RATE = 1000;

/** A core at 1 kHz with a fade of 5 frames and a start buffer of 4, and the events it reports. */
function openCore(options = {}) {
  const events = [];
  const core = new PlaybackCore({
    sampleRate: RATE,
    startSeconds: 0.004,
    maxStartSeconds: 0.016,
    fadeSeconds: 0.005,
    onEvent: (event) => events.push(event),
    ...options,
  });
  return { core, events };
}

const level = (frames, value = 16384) => new Int16Array(frames).fill(value);

function play(core, frames, frame = 0) {
  const out = new Float32Array(frames).fill(NaN);
  core.process(out, frame);
  return [...out];
}

test("DX-1: a drain with enough buffered ramps the last F samples from 1 to 0 and leaves the others alone", () => {
  const { core } = openCore();
  core.append(1, level(8));
  core.drain(1);
  assert.deepEqual(play(core, 8), [0.5, 0.5, 0.5, 0.5, 0.375, 0.25, 0.125, 0]);
});

test("DX-2: a drain with less than F buffered ramps over what there is", () => {
  const { core } = openCore();
  core.append(1, level(3));
  core.drain(1);
  assert.deepEqual(play(core, 3), [0.5, 0.25, 0]);
});

test("DX-3: a drain with one frame buffered plays that frame as 0", () => {
  const { core, events } = openCore();
  core.append(1, level(1));
  core.drain(1);
  assert.deepEqual(play(core, 1), [0]);
  assert.equal(events.at(-1).played, 1);
});

test("DX-4: a drain with nothing buffered is drained at once, without a fade", () => {
  const { core, events } = openCore();
  core.append(1, level(4));
  play(core, 4);
  core.drain(1);
  assert.deepEqual(events.at(-1), { type: "drained", reply: 1, frame: 4, played: 4, underruns: 0, firstFrame: 0 });
});

test("DX-4: a reply without any audio is drained at once", () => {
  const { core, events } = openCore();
  core.drain(7);
  assert.deepEqual(events, [{ type: "drained", reply: 7, frame: 0, played: 0, underruns: 0, firstFrame: null }]);
});

test("DX-5: a fade that spans pieces and quanta is continuous over their borders", () => {
  const { core } = openCore();
  core.append(1, level(4));
  core.append(1, level(2));
  core.append(1, level(1));
  core.drain(1);
  const out = [...play(core, 4, 0), ...play(core, 4, 4)];
  assert.deepEqual(out, [0.5, 0.5, 0.5, 0.375, 0.25, 0.125, 0, 0]);
});

test("DX-6: a reset in the middle of a fade leaves no fade on the next reply", () => {
  const { core } = openCore();
  core.append(1, level(6));
  core.drain(1);
  play(core, 3);
  core.reset();
  core.append(2, level(8));
  assert.deepEqual(play(core, 8, 3), Array(8).fill(0.5));
});

test("DX-7: a drain before the start buffer is full starts playback at once", () => {
  const { core, events } = openCore({ startSeconds: 0.2, fadeSeconds: 0 });
  core.append(1, level(50));
  assert.deepEqual(play(core, 10), Array(10).fill(0));
  core.drain(1);
  assert.deepEqual(play(core, 50, 10), Array(50).fill(0.5));
  assert.deepEqual(
    events.map(({ type, frame }) => [type, frame]),
    [
      ["started", 10],
      ["drained", 60],
    ],
  );
});

test("samples are 16-bit, scaled by 1/32768", () => {
  const { core } = openCore();
  core.append(1, Int16Array.of(-32768, 32767, 1, 0));
  assert.deepEqual(play(core, 4), [-1, 32767 / 32768, 1 / 32768, 0]);
});

test("nothing plays before the start buffer is full, and then everything does from the first sample", () => {
  const { core } = openCore();
  core.append(1, Int16Array.of(3, 2, 1));
  assert.deepEqual(play(core, 4), [0, 0, 0, 0]);
  core.append(1, Int16Array.of(5));
  assert.deepEqual(
    play(core, 4, 4),
    [3, 2, 1, 5].map((sample) => sample / 32768),
  );
});

test("at 24 kHz the start buffer is 60 ms, the fade 5 ms, and the start buffer never exceeds 480 ms", () => {
  const core = new PlaybackCore({ sampleRate: 24000 });
  assert.deepEqual([core.startFrames, core.fadeFrames, core.maxStartFrames], [1440, 120, 11520]);
});

test("running dry before the end is one underrun, however long it lasts, and doubles the start buffer up to its bound", () => {
  const { core, events } = openCore();
  for (const expected of [8, 16, 16]) {
    core.append(1, level(core.startFrames));
    play(core, 16);
    play(core, 16);
    assert.equal(core.startFrames, expected);
  }
  assert.equal(events.filter(({ type }) => type === "underrun").length, 3);
  core.drain(1);
  assert.equal(events.at(-1).underruns, 3);
});

test("audio that arrives exactly when the buffer empties is no underrun", () => {
  const { core, events } = openCore();
  core.append(1, level(4));
  play(core, 4);
  core.append(1, level(4));
  assert.deepEqual(play(core, 4, 4), [0.5, 0.5, 0.5, 0.5]);
  assert.deepEqual(
    events.map(({ type }) => type),
    ["started"],
  );
});

test("an underrun decays to zero within the fade and playback comes back with a fade-in", () => {
  const { core, events } = openCore();
  core.append(1, level(4));
  assert.deepEqual(play(core, 12), [0.5, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1, 0, 0, 0, 0].map(Math.fround));
  core.append(1, level(8));
  assert.deepEqual(play(core, 8, 12), [0, 0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5]);
  assert.deepEqual(
    events.map(({ type, frame, position }) => [type, frame, position]),
    [
      ["started", 0, 0],
      ["underrun", 4, undefined],
      ["started", 12, 4],
    ],
  );
});

test("a terminal fade multiplies with a running fade-in", () => {
  const { core } = openCore();
  core.append(1, level(4));
  play(core, 12);
  core.append(1, level(5));
  core.drain(1);
  const fadeIn = [0, 0.25, 0.5, 0.75, 1];
  assert.deepEqual(
    play(core, 5, 12),
    fadeIn.map((gain, k) => 0.5 * gain * fadeIn[4 - k]),
  );
});

test("audio after a drain cancels the fade without a step in gain", () => {
  const { core, events } = openCore();
  core.append(1, level(5));
  core.drain(1);
  assert.deepEqual(play(core, 3), [0.5, 0.375, 0.25]);
  core.append(1, level(6));
  assert.deepEqual(play(core, 6, 3), [0.125, 0.21875, 0.3125, 0.40625, 0.5, 0.5]);
  assert.equal(
    events.some(({ type }) => type === "drained"),
    false,
  );
  core.drain(1);
  assert.deepEqual(play(core, 2, 9), [0.5, 0]);
});

test("the next reply follows in the same quantum, without a gap and with its own start on the audio clock", () => {
  const { core, events } = openCore({ fadeSeconds: 0 });
  core.append(1, level(4, 8192));
  core.drain(1);
  core.append(2, level(4));
  core.drain(2);
  assert.deepEqual(play(core, 10, 100), [0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 0, 0]);
  assert.deepEqual(
    events.map(({ type, reply, frame }) => [type, reply, frame]),
    [
      ["started", 1, 100],
      ["drained", 1, 104],
      ["started", 2, 104],
      ["drained", 2, 108],
    ],
  );
});

test("waiting for the first audio of the next reply is no underrun", () => {
  const { core, events } = openCore();
  core.append(1, level(4));
  core.drain(1);
  play(core, 16);
  core.append(2, level(4));
  play(core, 4, 16);
  assert.equal(
    events.some(({ type }) => type === "underrun"),
    false,
  );
});

test("a reset drops every queued reply; the next quantum carries only the decay of the last sample, then silence", () => {
  const { core, events } = openCore();
  core.append(1, level(3000));
  core.append(2, level(3000));
  play(core, 128);
  core.reset();
  assert.deepEqual(play(core, 128, 128), [0.4, 0.3, 0.2, 0.1, ...Array(124).fill(0)].map(Math.fround));
  assert.deepEqual(play(core, 128, 256), Array(128).fill(0));
  assert.deepEqual(events.at(-1), { type: "reset", reply: 1, frame: 128, played: 128, dropped: 5872 });
  assert.equal(core.status().buffered, 0);
});

test("S50: audio of a reply that was stopped, still on its way from another thread, is not played", () => {
  const { core, events } = openCore();
  core.append(1, level(8));
  play(core, 4);
  core.reset(3);
  core.append(1, level(8));
  core.drain(1);
  core.append(2, level(8));
  assert.deepEqual(play(core, 16, 4).slice(4), Array(12).fill(0));
  core.append(3, level(8));
  core.drain(3);
  assert.equal(play(core, 8, 20)[0], 0.5);
  assert.deepEqual(
    events.filter(({ type }) => type === "drained").map(({ reply }) => reply),
    [3],
  );
});

test("at any rate the decay after a stop ends within one quantum", () => {
  const core = new PlaybackCore({ sampleRate: 48000 });
  core.append(1, level(9600));
  play(core, 128);
  core.reset();
  assert.equal(play(core, 128, 128).at(-1), 0);
});

test("a reply that starts again after a reset starts with clear counters", () => {
  const { core, events } = openCore();
  core.append(1, level(4));
  play(core, 16);
  core.reset();
  core.append(1, level(4));
  core.drain(1);
  play(core, 16, 16);
  assert.deepEqual(events.at(-1), { type: "drained", reply: 1, frame: 20, played: 4, underruns: 0, firstFrame: 16 });
});

test("S1: a tone in 320 ms pieces comes out as one tone, whatever the quanta", () => {
  const tone = Int16Array.from({ length: 24000 }, (_, n) =>
    Math.round(8000 * Math.sin((2 * Math.PI * 440 * n) / 24000)),
  );
  const core = new PlaybackCore({ sampleRate: 24000, fadeSeconds: 0 });
  for (let at = 0; at < tone.length; at += 7680) core.append(1, tone.slice(at, at + 7680));
  core.drain(1);
  const out = [];
  while (out.length < tone.length) out.push(...play(core, 128, out.length));
  assert.deepEqual(
    out.slice(0, tone.length),
    [...tone].map((sample) => Math.fround(sample / 32768)),
  );
  assert.deepEqual(out.slice(tone.length), Array(out.length - tone.length).fill(0));
});

test("the status tells position, buffer and start buffer of what is playing", () => {
  const { core } = openCore();
  assert.deepEqual(core.status(), { reply: null, playing: false, position: 0, buffered: 0, startFrames: 4 });
  core.append(3, level(10));
  assert.equal(core.status().playing, false);
  play(core, 6);
  assert.deepEqual(core.status(), { reply: 3, playing: true, position: 6, buffered: 4, startFrames: 4 });
});
