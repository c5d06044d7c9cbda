// Recordings: the outline that is drawn and the file that is downloaded.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Peaks } from "../../../web/peaks.js";
import { wavBytes, wavName } from "../../../web/wav.js";

test("a wav file has true sizes, the rate, and every sample", () => {
  const samples = Int16Array.of(1, -1, 32767, -32768, 0);
  const view = new DataView(wavBytes(samples, 24000));
  assert.equal(view.byteLength, 54);
  assert.equal(view.getUint32(4, true), 46);
  assert.equal(view.getUint32(24, true), 24000);
  assert.equal(view.getUint32(28, true), 48000);
  assert.equal(view.getUint32(40, true), 10);
  assert.deepEqual(
    samples.map((_, n) => view.getInt16(44 + 2 * n, true)),
    samples,
  );
});

test("a file is named after its first words", () => {
  assert.equal(wavName("Hello, World! It's 5 o'clock, my dear friend."), "hello-world-it-s-5-o.wav");
  assert.equal(wavName("…"), "speech.wav");
});

test("the outline is the loudest sample of each 20 ms, however the audio arrives", () => {
  const samples = Int16Array.from({ length: 1000 }, (_, n) => (n % 100 === 50 ? -16384 : n % 7));
  const whole = new Peaks(1000);
  whole.append(samples);
  const pieces = new Peaks(1000);
  for (let at = 0; at < samples.length; at += 37) pieces.append(samples.subarray(at, at + 37));
  assert.equal(whole.bucketFrames, 20);
  assert.equal(whole.length, 50);
  const values = (peaks) => Array.from({ length: peaks.length }, (_, bucket) => peaks.at(bucket));
  assert.deepEqual(values(pieces), values(whole));
  assert.equal(whole.at(2), 0.5);
  assert.deepEqual([whole.at(-1), whole.at(50)], [0, 0]);
});

test("the outline grows beyond its first size and can be fitted to any width", () => {
  const peaks = new Peaks(1000);
  peaks.append(new Int16Array(20_000).fill(8192));
  peaks.append(new Int16Array(20_000).fill(16384));
  assert.equal(peaks.length, 2000);
  assert.deepEqual(peaks.fit(4), [0.25, 0.25, 0.5, 0.5]);
  assert.equal(peaks.fit(3000).length, 3000);
  assert.deepEqual(new Peaks(1000).fit(2), [0, 0]);
});
