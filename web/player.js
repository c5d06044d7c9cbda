// The page's loudspeaker: an AudioContext, the playback worklet, and where on the audio clock the listener is.

const PREFERRED_RATE = 24_000;
const OTHER_RATES = [48_000, 44_100];
const SERVER_RATES = { lowest: 8000, highest: 48_000 };

/** Why there is no sound here: `insecure` (plain http from another host), `unsupported` or `failed`. */
export class PlayerUnavailable extends Error {
  constructor(reason, message) {
    super(message);
    this.reason = reason;
  }
}

/**
 * Plays replies through the worklet. The context runs at 24 kHz where the browser allows it, else at a rate that the
 * server can deliver: the server resamples, this page never does.
 *
 * `onEvent` gets the worklet's events ("started", "underrun", "drained", "reset", "status").
 */
export class Player {
  #context;
  #node;
  #stops = [];
  #spans = [];

  status = { reply: null, playing: false, position: 0, buffered: 0, startFrames: 0, frame: 0 };

  /** Opens the context and loads the worklet; raises PlayerUnavailable. Needs a user gesture to become audible. */
  static async open(onEvent) {
    if (!globalThis.isSecureContext) {
      throw new PlayerUnavailable("insecure", "Browsers allow audio worklets on https and localhost only.");
    }
    if (!globalThis.AudioWorkletNode) throw new PlayerUnavailable("unsupported", "This browser has no AudioWorklet.");
    const context = openContext();
    try {
      await context.audioWorklet.addModule(new URL("./playback-worklet.js", import.meta.url));
    } catch (error) {
      await context.close();
      throw new PlayerUnavailable("failed", `The audio worklet did not load: ${error.message}`);
    }
    return new Player(context, onEvent);
  }

  constructor(context, onEvent) {
    this.#context = context;
    this.#node = new AudioWorkletNode(context, "streamsynth-playback", { numberOfInputs: 0, outputChannelCount: [1] });
    this.#node.port.onmessage = ({ data }) => {
      this.#note(data);
      onEvent(data);
    };
    this.#node.connect(context.destination);
    context.onstatechange = () => onEvent({ type: "state", reply: null });
  }

  get context() {
    return this.#context;
  }

  get node() {
    return this.#node;
  }

  get sampleRate() {
    return this.#context.sampleRate;
  }

  /** False while the browser holds sound back (no user gesture yet) or has interrupted it. */
  get running() {
    return this.#context.state === "running";
  }

  /** Asks for sound; the browser may grant it later, and what is queued plays then. */
  wake() {
    if (!this.running) this.#context.resume();
  }

  /** Lets go of the sound device until the next `wake`. */
  rest() {
    this.#context.suspend();
  }

  /** Lets another thread append and drain through `port`. */
  connect(port) {
    this.#node.port.postMessage({ type: "connect", port }, [port]);
  }

  /** Hands 16-bit samples to the audio thread; the array is given away. */
  append(reply, samples) {
    this.#node.port.postMessage({ type: "append", reply, samples }, [samples.buffer]);
  }

  drain(reply) {
    this.#node.port.postMessage({ type: "drain", reply });
  }

  /**
   * Silences everything, from the next quantum on, and whatever still comes for replies before `firstLive`. Resolves with
   * the worklet's report of what was dropped.
   */
  stop(firstLive) {
    this.#node.port.postMessage({ type: "reset", firstLive });
    return new Promise((resolve) => this.#stops.push(resolve));
  }

  /** When the frame reaches the listener's ear, in ms on the clock of `performance.now()`. */
  audibleAt(frame) {
    const { contextTime, performanceTime } = this.#outputTime();
    return performanceTime + (frame / this.sampleRate - contextTime) * 1000;
  }

  /** What the listener hears at this moment: `{reply, position}` in frames, or null. */
  heard() {
    const { contextTime, performanceTime } = this.#outputTime();
    const frame = (contextTime + (performance.now() - performanceTime) / 1000) * this.sampleRate;
    const span = this.#spans.findLast(({ from }) => from <= frame);
    if (!span || frame >= span.to) return null;
    return { reply: span.reply, position: span.position + frame - span.from };
  }

  #outputTime() {
    const stamp = this.#context.getOutputTimestamp?.();
    if (stamp?.performanceTime > 0) return stamp;
    const latency = this.#context.outputLatency || this.#context.baseLatency || 0;
    return { contextTime: this.#context.currentTime - latency, performanceTime: performance.now() };
  }

  /** Keeps the stretches of the audio clock on which replies play: those still to be heard, and the one before them. */
  #note(event) {
    const { type, reply, frame } = event;
    if (type === "status") this.status = event;
    else if (type === "started") this.#spans = [...this.#spans.slice(-2), span(event)];
    else if (this.#spans.length > 0 && this.#spans.at(-1).reply === reply) this.#spans.at(-1).to = frame;
    if (type === "reset") this.#stops.shift()?.(event);
  }
}

const span = ({ reply, frame, position }) => ({ reply, position, from: frame, to: Infinity });

function openContext() {
  for (const sampleRate of [PREFERRED_RATE, undefined, ...OTHER_RATES]) {
    const context = tryContext(sampleRate);
    if (!context) continue;
    if (context.sampleRate >= SERVER_RATES.lowest && context.sampleRate <= SERVER_RATES.highest) return context;
    context.close();
  }
  throw new PlayerUnavailable("failed", "This browser opens no audio output between 8 and 48 kHz.");
}

function tryContext(sampleRate) {
  try {
    return new AudioContext({ sampleRate, latencyHint: "interactive" });
  } catch {
    return null;
  }
}
