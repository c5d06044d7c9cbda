// What the page can do, without the page: speak, stop, replay. It joins the wire, the player and the takes.

import { Player } from "./player.js";
import { Part, Take, boundTakes } from "./takes.js";
import { Wire } from "./wire.js";

const PREFERRED_RATE = 24_000;
const KEPT = { maxTakes: 200, maxSeconds: 20 * 60 };
const MAX_ATTEMPTS = 5;

/** `onChange()` is called whenever something to be shown has changed, `onNotice(error)` when something went wrong. */
export class Studio {
  #onChange;
  #onNotice;
  #opening = null;
  #choice = { speed: 1 };
  #epoch = 0;
  #turn = Promise.resolve();
  #nextReply = 1;
  #replies = new Map(); // id -> {take, part; null for a replay}, until it was played or stopped
  #refused = { parts: [], timer: null };

  takes = [];
  current = null;
  player = null;
  underruns = 0;
  /** When the parts that a full server refused go out again, as `performance.now()` counts; null if there are none. */
  retryAt = null;

  constructor({ url, onChange, onNotice }) {
    this.#onChange = onChange;
    this.#onNotice = onNotice;
    this.wire = new Wire({ url, onState: onChange, onEvent: (event) => this.#hear(event) });
    this.#applyChoice();
  }

  /** Whether anything is being made, waits to be made, or is being played. */
  get speaking() {
    return this.#refused.parts.length > 0 || this.#replies.size > 0;
  }

  /** What the listener hears now: `{take, part, frame, position}`, counted in the take and in the part; or null. */
  heard() {
    const heard = this.player?.heard();
    const reply = heard && this.#replies.get(heard.reply);
    if (!reply) return null;
    const { take, part } = reply;
    const offset = part ? (part.offset ?? take.samples) : 0;
    return { take, part, frame: offset + heard.position, position: heard.position };
  }

  /** Whether `take` plays, or is about to: "live" for the first time, "replay", or null. */
  activity(take) {
    const reply = [...this.#replies.values()].find((candidate) => candidate.take === take);
    if (!reply) return null;
    return reply.part ? "live" : "replay";
  }

  /** Model, voice and speed of what is said from now on: what still waits for its turn keeps those it was said with. */
  configure(choice) {
    return this.#inTurn(() => {
      this.#choice = choice;
      this.#applyChoice();
    });
  }

  /** Opens audio output and connection ahead of use, within a user gesture. Raises PlayerUnavailable. */
  async prepare() {
    if (!this.player) await this.#openPlayer();
    this.player.wake();
    if (this.wire.state !== "locked") this.wire.use();
  }

  /** Lets go of the audio output while nobody looks and nothing plays. */
  rest() {
    if (!this.speaking) this.player?.rest();
  }

  /** Speaks `text` as the next part of the current take, as soon as the parts before it are spoken. */
  speak(text) {
    const epoch = this.#epoch;
    return this.#inTurn(async () => {
      if (!this.player?.running) await this.prepare();
      if (epoch === this.#epoch) this.#addPart(text);
    });
  }

  /** What is said after this is another take. */
  endTake() {
    return this.#inTurn(() => this.#closeTake());
  }

  /** Silence, at once, and nothing more of what was asked for. Resolves when the audio thread has dropped its queue. */
  async stop() {
    this.#epoch += 1;
    this.#markStopped();
    this.#replies.clear();
    this.wire.cancel();
    for (const part of this.#takeRefused()) part.end("cancelled");
    this.#closeTake();
    await this.player?.stop(this.#nextReply);
  }

  /** Plays a take again from its start, instead of whatever plays now. */
  async replay(take) {
    await this.stop();
    await this.prepare();
    const id = this.#nextReply++;
    this.#replies.set(id, { take, part: null });
    this.player.append(id, take.recording());
    this.player.drain(id);
    this.#onChange();
  }

  /** The first words open the player, which takes a moment: what comes meanwhile waits for them. */
  #inTurn(action) {
    const done = this.#turn.then(action);
    this.#turn = done.catch(() => {});
    return done;
  }

  #addPart(text) {
    const part = new Part(text, !this.speaking);
    this.current ??= this.#openTake();
    this.current.parts.push(part);
    if (this.#refused.parts.length > 0) this.#refused.parts.push(part);
    else this.#send(this.current, part);
    this.#onChange();
  }

  #closeTake() {
    this.current = null;
    this.#onChange();
  }

  async #openPlayer() {
    this.#opening ??= Player.open((event) => this.#listen(event));
    try {
      this.player = await this.#opening;
    } catch (error) {
      this.#opening = null;
      throw error;
    }
    if (!this.#opening) return;
    this.#opening = null;
    const { port1, port2 } = new MessageChannel();
    this.player.connect(port1);
    this.wire.connect(port2);
    this.#applyChoice();
  }

  #openTake() {
    const take = new Take(this.player.sampleRate);
    this.takes.push(take);
    return take;
  }

  #applyChoice() {
    this.wire.configure({ ...this.#choice, sample_rate: this.player?.sampleRate ?? PREFERRED_RATE });
  }

  #send(take, part) {
    part.id = this.#nextReply++;
    part.state = "sent";
    part.attempts += 1;
    part.textAt = performance.now();
    this.#replies.set(part.id, { take, part });
    this.wire.speak(part.id, part.text);
  }

  #markStopped() {
    const heard = this.heard();
    for (const { take, part } of this.#replies.values()) if (part) take.stoppedAt ??= 0;
    for (const take of this.takes) if (take.making) take.stoppedAt ??= 0;
    if (heard?.part) heard.take.stoppedAt = heard.frame;
  }

  #find(id) {
    for (const take of this.takes) {
      const part = take.parts.find((candidate) => candidate.id === id);
      if (part) return { take, part };
    }
    return {};
  }

  /** From the server. */
  #hear(event) {
    const { take, part } = this.#find(event.id);
    if (event.type === "error") this.#onNotice(event.error);
    else if (!part) return;
    else if (event.type === "sentence") part.sentences.push(event.sentence);
    else if (event.type === "ended") this.#end(take, part, event);
    else {
      part.firstAudioAt ??= event.firstAudioAt;
      take.record(part, event.samples);
    }
    this.#onChange();
  }

  #end(take, part, { status, error, samples, totalSamples, stopped }) {
    if (samples === 0) this.#replies.delete(part.id);
    part.totalSamples = totalSamples;
    part.end(status, error);
    if (status === "failed" && !stopped && mayTryAgain(part)) this.#tryAgainLater(part);
    else if (error) this.#onNotice(error);
    this.takes = boundTakes(this.takes, KEPT);
  }

  /** Refused parts go out again together, in the order in which they were written. */
  #tryAgainLater(part) {
    const delay = part.error.retry_after_ms;
    Object.assign(part, { state: "waiting", status: null, error: null });
    this.#refused.parts.push(part);
    this.retryAt = performance.now() + delay;
    clearTimeout(this.#refused.timer);
    this.#refused.timer = setTimeout(() => this.#tryAgain(), delay);
  }

  #tryAgain() {
    const parts = new Set(this.#takeRefused());
    for (const take of this.takes) for (const part of take.parts) if (parts.has(part)) this.#send(take, part);
    this.#onChange();
  }

  #takeRefused() {
    clearTimeout(this.#refused.timer);
    const { parts } = this.#refused;
    this.#refused = { parts: [], timer: null };
    this.retryAt = null;
    return parts;
  }

  /** From the audio thread. */
  #listen({ type, reply, ...report }) {
    const { part } = this.#replies.get(reply) ?? {};
    if (type === "started" && part) part.audibleAt ??= this.player.audibleAt(report.frame);
    if (type === "underrun") this.underruns += 1;
    if (type === "drained") {
      if (part) part.playback = report;
      this.#replies.delete(reply);
    }
    this.#onChange();
  }
}

/** A full server said when to come back, and nothing of the part was heard yet. */
function mayTryAgain({ error, samples, attempts }) {
  return error?.retry_after_ms !== undefined && samples === 0 && attempts < MAX_ATTEMPTS;
}
