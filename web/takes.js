// What was said: takes, each made of parts, each part one utterance on the socket. No DOM, no audio output.
//
// Someone who types on while the page speaks makes one take of several parts; Enter on a whole text makes one of one.

import { Peaks } from "./peaks.js";

let lastTakeId = 0;

/** One utterance of a take. `offset` is where its audio begins in the take; times are null where they would mislead. */
export class Part {
  id = null; // of the utterance, once it was sent
  state = "waiting"; // -> sent -> ended
  status = null; // once ended: completed, cancelled or failed
  sentences = []; // {text, firstSample}
  pieces = [];
  samples = 0;
  totalSamples = null;
  offset = null;
  textAt = null;
  firstAudioAt = null;
  audibleAt = null;
  playback = null; // the worklet's report once all of it was played
  error = null;
  attempts = 0;

  /** `alone`: nothing else was being made or played when it was sent, so its times are the server's and the page's. */
  constructor(text, alone) {
    this.text = text;
    this.alone = alone;
  }

  get firstAudioMs() {
    return this.alone && this.firstAudioAt !== null ? this.firstAudioAt - this.textAt : null;
  }

  get audibleMs() {
    return this.alone && this.audibleAt !== null ? this.audibleAt - this.textAt : null;
  }

  end(status, error = null) {
    Object.assign(this, { state: "ended", status, error });
  }
}

export class Take {
  parts = [];
  stoppedAt = null; // frames, where the listener stopped it
  audioDropped = false;

  constructor(sampleRate) {
    this.id = ++lastTakeId;
    this.sampleRate = sampleRate;
    this.peaks = new Peaks(sampleRate);
  }

  get text() {
    return this.parts.map(({ text }) => text).join("");
  }

  get samples() {
    return this.peaks.samples;
  }

  get seconds() {
    return this.samples / this.sampleRate;
  }

  get error() {
    return this.parts.find(({ error }) => error)?.error ?? null;
  }

  get making() {
    return this.parts.some(({ state }) => state !== "ended");
  }

  get firstAudioMs() {
    return this.parts[0]?.firstAudioMs ?? null;
  }

  get audibleMs() {
    return this.parts[0]?.audibleMs ?? null;
  }

  get underruns() {
    return this.parts.reduce((sum, { playback }) => sum + (playback?.underruns ?? 0), 0);
  }

  /** Adds audio to one of its parts; parts get audio in order. The take keeps the array. */
  record(part, samples) {
    part.offset ??= this.samples;
    part.pieces.push(samples);
    part.samples += samples.length;
    this.peaks.append(samples);
  }

  /** Everything that was made, as one new array. */
  recording() {
    const all = new Int16Array(this.samples);
    let at = 0;
    for (const piece of this.parts.flatMap(({ pieces }) => pieces)) {
      all.set(piece, at);
      at += piece.length;
    }
    return all;
  }

  dropAudio() {
    this.audioDropped = true;
    for (const part of this.parts) part.pieces = [];
  }
}

/** What is kept of `takes`: the latest, and of these only the latest `maxSeconds` of audio (text and times stay). */
export function boundTakes(takes, { maxTakes, maxSeconds }) {
  const kept = takes.slice(-maxTakes);
  let seconds = 0;
  for (const take of [...kept].reverse()) {
    if (take.audioDropped) continue;
    seconds += take.seconds;
    if (seconds > maxSeconds && !take.making && take !== kept.at(-1)) take.dropAudio();
  }
  return kept;
}
