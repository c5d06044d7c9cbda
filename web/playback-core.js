// What the audio thread does with samples, free of Web Audio so that node can test it sample by sample.
//
// A reply is everything that is played for one utterance. Its id is a number, larger than any before it.
// Replies play in the order of their first message, the next one right behind the last sample of the one before. All
// counts are frames of mono audio.

const FULL_SCALE = 32768;
const QUANTUM_FRAMES = 128;

/** One reply: its queued pieces, its counters, and the gain of its next sample. */
class Reply {
  #pieces = [];
  #offset = 0;
  #rise = null;

  constructor(id) {
    this.id = id;
    this.buffered = 0;
    this.played = 0;
    this.underruns = 0;
    this.started = false;
    this.draining = false;
    this.fadeFrames = 0;
    this.firstFrame = null;
  }

  append(samples, riseFrames) {
    if (samples.length === 0) return;
    if (this.draining) this.#cancelDrain(riseFrames);
    this.#pieces.push(samples);
    this.buffered += samples.length;
  }

  drain(fadeFrames) {
    if (this.draining) return;
    this.draining = true;
    this.fadeFrames = Math.min(fadeFrames, this.buffered);
  }

  /** Ramps the gain from `from` to 1 over the next `frames` samples. */
  rise(from, frames) {
    this.#rise = { from, frames, done: 0 };
  }

  /** Moves samples to `out[from..to)`, as many as there are, and returns how many. */
  read(out, from, to) {
    let at = from;
    while (at < to && this.buffered > 0) {
      const piece = this.#pieces[0];
      out[at++] = (piece[this.#offset++] / FULL_SCALE) * this.#nextGain();
      this.buffered -= 1;
      this.played += 1;
      if (this.#offset === piece.length) {
        this.#pieces.shift();
        this.#offset = 0;
      }
    }
    return at - from;
  }

  /** The terminal fade: exactly 1 where it begins, exactly 0 on the last sample, whatever pieces it spans. */
  #terminalGain() {
    if (!this.draining || this.buffered > this.fadeFrames) return 1;
    return this.fadeFrames === 1 ? 0 : (this.buffered - 1) / (this.fadeFrames - 1);
  }

  #nextGain() {
    const gain = this.#terminalGain();
    if (!this.#rise) return gain;
    const { from, frames, done } = this.#rise;
    this.#rise = done + 1 < frames ? { from, frames, done: done + 1 } : null;
    return gain * (frames === 1 ? 1 : from + ((1 - from) * done) / (frames - 1));
  }

  /** More audio after the end was announced: the gain climbs back from where the fade stands, without a step. */
  #cancelDrain(riseFrames) {
    const gain = this.buffered > 0 ? this.#terminalGain() : 0;
    this.draining = false;
    if (gain < 1) this.rise(gain, riseFrames);
  }
}

/**
 * Queues replies and fills output quanta.
 *
 * A reply starts once `startFrames` are buffered or its end is known. When it runs dry before its end, that is one
 * underrun: it waits again, for twice as much (at most `maxStartSeconds`), and comes back with a short fade-in. Where the
 * output stops in mid-wave it decays to zero within one quantum instead of stepping.
 *
 * `onEvent` gets `{type: "started" | "underrun" | "drained" | "reset", reply, frame, ...}`, where `frame` is on the clock
 * that is passed to `process`; "started" comes again, with the reply's `position`, when it goes on after an underrun.
 */
export class PlaybackCore {
  #replies = [];
  #frame = 0;
  #lastSample = 0;
  #tailFrames = 0;
  #firstLive = -Infinity;

  constructor({ sampleRate, startSeconds = 0.06, maxStartSeconds = 0.48, fadeSeconds = 0.005, onEvent = () => {} }) {
    this.startFrames = Math.round(sampleRate * startSeconds);
    this.maxStartFrames = Math.round(sampleRate * maxStartSeconds);
    this.fadeFrames = Math.round(sampleRate * fadeSeconds);
    this.declickFrames = Math.min(this.fadeFrames, QUANTUM_FRAMES);
    this.onEvent = onEvent;
  }

  /** Queues 16-bit samples at the end of a reply; the core owns them from now on. */
  append(id, samples) {
    if (id >= this.#firstLive) this.#reply(id).append(samples, this.fadeFrames);
  }

  /** Announces the end of a reply: what is buffered plays out at once and fades over its last frames. */
  drain(id) {
    if (id < this.#firstLive) return;
    this.#reply(id).drain(this.fadeFrames);
    this.#finishDrained();
  }

  /**
   * Drops everything that is queued; the next quantum carries none of it. Audio of replies before `firstLive` that is
   * still on its way, from another thread, is dropped too.
   */
  reset(firstLive = -Infinity) {
    this.#firstLive = firstLive;
    const head = this.#replies[0];
    const buffered = this.#buffered();
    this.#replies = [];
    this.onEvent({
      type: "reset",
      reply: head?.id ?? null,
      frame: this.#frame,
      played: head?.played ?? 0,
      dropped: buffered,
    });
  }

  /** Fills `out` completely; `frame` is the position of its first sample on the audio clock. */
  process(out, frame) {
    this.#frame = frame;
    let filled = 0;
    while (filled < out.length && this.#headCanPlay(frame + filled)) {
      filled += this.#replies[0].read(out, filled, out.length);
      this.#frame = frame + filled;
      this.#finishDrained();
    }
    this.#settle(out, filled);
    this.#frame = frame + out.length;
  }

  status() {
    const head = this.#replies[0];
    return {
      reply: head?.id ?? null,
      playing: head?.started ?? false,
      position: head?.played ?? 0,
      buffered: this.#buffered(),
      startFrames: this.startFrames,
    };
  }

  #reply(id) {
    let reply = this.#replies.find((candidate) => candidate.id === id);
    if (!reply) {
      reply = new Reply(id);
      this.#replies.push(reply);
    }
    return reply;
  }

  #buffered() {
    return this.#replies.reduce((sum, reply) => sum + reply.buffered, 0);
  }

  /** Starts or stops the head reply as its buffer says; true when it has a sample for `frame`. */
  #headCanPlay(frame) {
    const head = this.#replies[0];
    if (!head) return false;
    if (head.started && head.buffered === 0) this.#noteUnderrun(head, frame);
    if (!head.started && (head.draining || head.buffered >= this.startFrames)) this.#start(head, frame);
    return head.started;
  }

  #start(reply, frame) {
    reply.started = true;
    reply.firstFrame ??= frame;
    this.onEvent({ type: "started", reply: reply.id, frame, position: reply.played });
  }

  #noteUnderrun(reply, frame) {
    reply.started = false;
    reply.underruns += 1;
    reply.rise(0, this.fadeFrames);
    this.startFrames = Math.min(this.startFrames * 2, this.maxStartFrames);
    this.onEvent({ type: "underrun", reply: reply.id, frame, played: reply.played });
  }

  #finishDrained() {
    while (this.#replies[0]?.draining && this.#replies[0].buffered === 0) {
      const { id, played, underruns, firstFrame } = this.#replies.shift();
      this.onEvent({ type: "drained", reply: id, frame: this.#frame, played, underruns, firstFrame });
    }
  }

  #settle(out, filled) {
    if (filled > 0) {
      this.#lastSample = out[filled - 1];
      this.#tailFrames = this.declickFrames;
    }
    for (let at = filled; at < out.length; at++) {
      if (this.#tailFrames > 0) this.#tailFrames -= 1;
      out[at] = this.#tailFrames > 0 ? (this.#lastSample * this.#tailFrames) / this.declickFrames : 0;
    }
  }
}
