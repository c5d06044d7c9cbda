// The audio thread: samples come from the page (player.js) and from the socket's thread (wire-worker.js), reports go to
// the page.

import { PlaybackCore } from "./playback-core.js";

const QUANTA_PER_STATUS = 4;

class PlaybackProcessor extends AudioWorkletProcessor {
  #quanta = 0;
  #nextFrame = 0;
  #wasIdle = false;

  constructor() {
    super();
    this.core = new PlaybackCore({ sampleRate, onEvent: (event) => this.port.postMessage(event) });
    this.port.onmessage = ({ data }) => this.#receive(data);
  }

  process(_inputs, [[out]]) {
    // Chromium now and then gives two or three quanta in a row the time of the first; each is played all the same.
    const frame = Math.max(currentFrame, this.#nextFrame);
    this.#nextFrame = frame + out.length;
    this.core.process(out, frame);
    if (this.#quanta++ % QUANTA_PER_STATUS === 0) this.#report(this.#nextFrame);
    return true;
  }

  #receive(message) {
    if (message.type === "append") this.core.append(message.reply, message.samples);
    else if (message.type === "drain") this.core.drain(message.reply);
    else if (message.type === "reset") this.core.reset(message.firstLive);
    else if (message.type === "connect") message.port.onmessage = ({ data }) => this.#receive(data);
  }

  #report(frame) {
    const status = this.core.status();
    const idle = status.reply === null;
    if (!(idle && this.#wasIdle)) this.port.postMessage({ type: "status", frame, ...status });
    this.#wasIdle = idle;
  }
}

registerProcessor("streamsynth-playback", PlaybackProcessor);
