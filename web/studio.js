// What the page can do, without the page: speak, stop, replay. It joins the link, the player and the takes.

import { Link } from "./link.js";
import { Player } from "./player.js";
import { messagesOf } from "./sentences.js";
import { Part, Take, boundTakes } from "./takes.js";

const PREFERRED_RATE = 24_000;
const KEPT = { maxTakes: 200, maxSeconds: 20 * 60 };
const MAX_ATTEMPTS = 5;

/**
 * `onChange()` is called whenever something to be shown has changed, `onNotice(error)` when something went wrong.
 * `openPlayer` and `environment` (what a browser offers: WebSocket, setTimeout, clearTimeout, now) are for tests.
 */
export class Studio {
  #onChange;
  #onNotice;
  #openPlayer;
  #environment;
  #opening = null;
  #choice = { speed: 1 };
  #epoch = 0;
  #spoken = new Map(); // utterance id -> {take, part}, until the utterance has ended
  #replies = new Map(); // reply id -> {take, part or null, offset()}, until it was played
  #refused = { parts: [], timer: null };

  takes = [];
  current = null;
  player = null;
  underruns = 0;
  /** When the parts that a full server refused go out again, on the clock of `environment.now`; null if there are none. */
  retryAt = null;

  constructor({ url, onChange, onNotice, openPlayer = Player.open, environment = browserEnvironment() }) {
    this.#onChange = onChange;
    this.#onNotice = onNotice;
    this.#openPlayer = openPlayer;
    this.#environment = environment;
    this.link = new Link({ url, environment, onState: onChange, onEvent: (event) => this.#hear(event) });
    this.#applyChoice();
  }

  /** Whether anything is being made, waits to be made, or is being played. */
  get speaking() {
    return Boolean(this.link.session?.busy) || this.#refused.parts.length > 0 || this.#replies.size > 0;
  }

  /** What the listener hears now: `{take, part, frame, position}`, counted in the take and in the part; or null. */
  heard() {
    const heard = this.player?.heard();
    const reply = heard && this.#replies.get(heard.reply);
    if (!reply) return null;
    return { take: reply.take, part: reply.part, frame: reply.offset() + heard.position, position: heard.position };
  }

  /** Whether `take` is what plays, or is about to. */
  plays(take) {
    return [...this.#replies.values()].some((reply) => reply.take === take);
  }

  /** Model, voice and speed of what is said from now on. */
  configure(choice) {
    this.#choice = choice;
    this.#applyChoice();
  }

  /** Opens audio output and connection ahead of use, within a user gesture. Raises PlayerUnavailable. */
  async prepare() {
    this.link.use();
    this.#opening ??= this.#openPlayer((event) => this.#listen(event));
    try {
      this.player = await this.#opening;
    } catch (error) {
      this.#opening = null;
      throw error;
    }
    this.#applyChoice();
    this.player.wake();
  }

  /** Speaks `text` as the next part of the current take, as soon as the parts before it are spoken. */
  async speak(text) {
    const epoch = this.#epoch;
    if (this.player?.running !== true) await this.prepare();
    if (epoch !== this.#epoch) return;
    const part = new Part(text, !this.speaking);
    this.current ??= this.#openTake();
    this.current.parts.push(part);
    if (this.#refused.parts.length > 0) this.#refused.parts.push(part);
    else this.#send(this.current, part);
    this.#onChange();
  }

  /** What is said next is another take. */
  endTake() {
    this.current = null;
    this.#onChange();
  }

  /** Silence, at once, and nothing more of what was asked for. Resolves when the audio thread has dropped its queue. */
  async stop() {
    this.#epoch += 1;
    this.#markStopped();
    this.#replies.clear();
    this.link.session?.cancel();
    for (const part of this.#takeRefused()) part.abandoned = true;
    this.endTake();
    await this.player?.stop();
  }

  /** Plays a take again from its start, instead of whatever plays now. */
  async replay(take) {
    await this.stop();
    await this.prepare();
    const reply = -take.id;
    this.#replies.set(reply, { take, part: null, offset: () => 0 });
    this.player.append(reply, take.recording());
    this.player.drain(reply);
    this.#onChange();
  }

  #openTake() {
    const take = new Take(this.player.sampleRate);
    this.takes.push(take);
    return take;
  }

  #applyChoice() {
    this.link.configure({ ...this.#choice, sample_rate: this.player?.sampleRate ?? PREFERRED_RATE });
  }

  #send(take, part) {
    const session = this.link.use();
    part.attempts += 1;
    for (const message of messagesOf(part.text)) part.utterance = session.append(message);
    this.#spoken.set(part.utterance.id, { take, part });
    session.finish();
  }

  #markStopped() {
    const heard = this.heard();
    for (const { take, part } of this.#replies.values()) if (part) take.stoppedAt ??= 0;
    for (const take of this.takes) if (take.making) take.stoppedAt ??= 0;
    if (heard?.part) heard.take.stoppedAt = heard.frame;
  }

  /** From the server. */
  #hear({ type, utterance, samples, error }) {
    if (type === "audio") this.#record(utterance, samples);
    else if (type === "ended") this.#end(utterance);
    else if (type === "error" || type === "refused") this.#onNotice(error);
    this.#onChange();
  }

  #record(utterance, samples) {
    const { take, part } = this.#spoken.get(utterance.id);
    take.record(part, samples.slice());
    this.#replies.set(utterance.id, { take, part, offset: () => part.offset });
    this.player.append(utterance.id, samples);
  }

  #end(utterance) {
    const { take, part } = this.#spoken.get(utterance.id);
    this.#spoken.delete(utterance.id);
    if (this.#replies.has(utterance.id)) this.player.drain(utterance.id);
    if (mayTryAgain(part)) this.#tryAgainLater(take, part);
    else if (utterance.error) this.#onNotice(utterance.error);
    this.takes = boundTakes(this.takes, KEPT);
  }

  /** Refused parts go out again together, in the order in which they were written. */
  #tryAgainLater(take, part) {
    const { setTimeout, clearTimeout, now } = this.#environment;
    const delay = part.utterance.error.retry_after_ms;
    part.utterance = null;
    this.#refused.parts.push(part);
    this.retryAt = now() + delay;
    clearTimeout(this.#refused.timer);
    this.#refused.timer = setTimeout(() => this.#tryAgain(), delay);
  }

  #tryAgain() {
    const parts = new Set(this.#takeRefused());
    for (const take of this.takes) for (const part of take.parts) if (parts.has(part)) this.#send(take, part);
    this.#onChange();
  }

  #takeRefused() {
    this.#environment.clearTimeout(this.#refused.timer);
    const { parts } = this.#refused;
    this.#refused = { parts: [], timer: null };
    this.retryAt = null;
    return parts;
  }

  /** From the audio thread. */
  #listen(event) {
    const part = this.#replies.get(event.reply)?.part;
    if (event.type === "started" && part) part.audibleAt ??= this.player.audibleAt(event.frame);
    if (event.type === "underrun") this.underruns += 1;
    if (event.type === "drained") {
      if (part) part.playback = event;
      this.#replies.delete(event.reply);
    }
    this.#onChange();
  }
}

/** A full server said when to come back, and nothing of the part was heard yet. */
function mayTryAgain({ utterance, samples, attempts }) {
  const refused = utterance.status === "failed" && !utterance.stopped && samples === 0;
  return refused && utterance.error?.retry_after_ms !== undefined && attempts < MAX_ATTEMPTS;
}

function browserEnvironment() {
  return {
    WebSocket,
    setTimeout: (action, delay) => setTimeout(action, delay),
    clearTimeout: (timer) => clearTimeout(timer),
    now: () => performance.now(),
  };
}
