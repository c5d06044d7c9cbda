// The page's end of the connection, which lives in wire-worker.js.

/**
 * `onEvent` gets, in order for each utterance `id`,
 *   {type: "sentence", id, sentence: {text, firstSample}}   a unit of the utterance begins
 *   {type: "audio", id, samples, firstAudioAt}              a copy of what the audio thread got
 *   {type: "ended", id, status, error, samples, totalSamples, stopped}   exactly once
 * and {type: "error", error} for what belongs to none. `onState()` is called when `state`, `error` or `retryAt` changed;
 * they are those of `link.js`. All times are on the clock of the page's `performance.now()`.
 */
export class Wire {
  #worker = new Worker(new URL("./wire-worker.js", import.meta.url), { type: "module" });
  #onEvent;
  #onState;

  state = "resting";
  error = null;
  retryAt = null;
  connections = 0;
  /** Audio frames that came after a cancel was acknowledged: 0 on a server that keeps its promise. */
  framesAfterAck = 0;

  constructor({ url, onEvent, onState }) {
    this.#onEvent = onEvent;
    this.#onState = onState;
    this.#worker.onmessage = ({ data }) => this.#receive(data);
    this.#worker.postMessage({ type: "open", url });
  }

  /** Gives the worker its way to the audio thread. */
  connect(port) {
    this.#worker.postMessage({ type: "connect", port }, [port]);
  }

  /** Settings of what is said from now on: {model?, voice?, speed, sample_rate}. */
  configure(settings) {
    this.#worker.postMessage({ type: "configure", settings });
  }

  /** Opens the connection ahead of use. */
  use() {
    this.#worker.postMessage({ type: "use" });
  }

  /** One utterance, from its first text to its end. */
  speak(id, text) {
    this.#worker.postMessage({ type: "speak", id, text });
  }

  /** Drops everything unfinished. */
  cancel() {
    this.#worker.postMessage({ type: "cancel" });
  }

  /** Whether to keep the connection alive. */
  setInUse(inUse) {
    this.#worker.postMessage({ type: "inUse", inUse });
  }

  /** Connects with a key. */
  unlock(key) {
    this.#worker.postMessage({ type: "unlock", key });
  }

  #receive(message) {
    if (message.type === "state") {
      const { state, error, retryAt, connections } = message;
      Object.assign(this, { state, error, retryAt: pageTime(retryAt), connections });
      this.#onState();
      return;
    }
    if (message.type === "audio") message.firstAudioAt = pageTime(message.firstAudioAt);
    if (message.type === "ended") this.framesAfterAck = message.framesAfterAck;
    this.#onEvent(message);
  }
}

const pageTime = (at) => (at === null ? null : at - performance.timeOrigin);
