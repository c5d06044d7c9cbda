// The speech protocol as a client sees it: utterances in, audio and endings out. No DOM, socket or clock of its own.
// One SpeechSession lives as long as one connection, which `link.js` owns.

const FIXED_CONFIG = {
  response_format: "pcm",
  stream_audio: true,
  split_granularity: "sentence",
  ack: true,
};

/** One utterance: `id` is the caller's name for it, `index` the server's. Times are on the session's clock, in ms. */
export class Utterance {
  state = "open"; // open -> flushed -> ended
  status = null; // once ended: completed, cancelled or failed
  text = "";
  sentences = []; // {text, firstSample, samples}
  samples = 0;
  totalSamples = null;
  textAt = null;
  firstAudioAt = null;
  stopped = false;
  acknowledged = false;
  error = null;

  constructor(id, index, sampleRate) {
    this.id = id;
    this.index = index;
    this.sampleRate = sampleRate;
  }
}

/**
 * Turns calls into messages and messages into events.
 *
 * `send(message)` puts an object on the wire. `onEvent` gets
 *   {type: "configured", limits, ignored}            settings are in force
 *   {type: "refused", error}                         the first settings were refused: this session can say nothing
 *   {type: "sentence", utterance, sentence}          a unit of the utterance begins
 *   {type: "audio", utterance, samples}              mono 16-bit samples, never after a stop
 *   {type: "ended", utterance}                       exactly once for each utterance
 *   {type: "error", error}                           a complaint that belongs to no utterance
 */
export class SpeechSession {
  #send;
  #now;
  #onEvent;
  #unfinished = new Map();
  #nextIndex = 0;
  #open = null;
  #current = null;
  #accepted = null;
  #asked = [];
  #wanted = null;

  /** Audio frames that came after the server acknowledged their cancel: 0 on a server that keeps its promise. */
  framesAfterAck = 0;
  fatal = null;
  ended = false;

  constructor({ send, onEvent, now = () => performance.now() }) {
    this.#send = send;
    this.#onEvent = onEvent;
    this.#now = now;
  }

  get busy() {
    return this.#unfinished.size > 0;
  }

  /**
   * Asks for settings {model?, voice?, speed, sample_rate}, which the first text needs. While an utterance is open they wait
   * for its end, since the server would refuse them.
   */
  configure(settings) {
    this.#wanted = settings;
    if (!this.#open) this.#sendSettings();
  }

  /** Adds text to the open utterance, opening one named `id` if there is none, and returns it. */
  append(text, id = null) {
    if (!this.#open) this.#openUtterance(id);
    const utterance = this.#open;
    utterance.text += text;
    utterance.textAt ??= this.#now();
    this.#send({ type: "input.text", text });
    return utterance;
  }

  /** Ends the open utterance, if there is one: what is left of it is spoken now. */
  finish() {
    if (!this.#open) return;
    this.#open.state = "flushed";
    this.#open = null;
    this.#send({ type: "input.done" });
    this.#sendSettings();
  }

  /** Drops everything unfinished. From here on no audio of it is handed out. */
  cancel() {
    if (!this.busy) return;
    for (const utterance of this.#unfinished.values()) {
      utterance.stopped = true;
      utterance.state = "flushed";
    }
    this.#open = null;
    this.#send({ type: "input.cancel" });
    this.#sendSettings();
  }

  ping() {
    this.#send({ type: "session.ping" });
  }

  receive(data) {
    if (typeof data === "string") this.#receiveMessage(JSON.parse(data));
    else this.#receiveAudio(data);
  }

  /** The connection is gone: everything unfinished ends here, with the reason. */
  lose(error) {
    if (this.ended) return;
    this.ended = true;
    this.#open = null;
    this.#current = null;
    for (const utterance of [...this.#unfinished.values()]) this.#end(utterance, "failed", this.fatal ?? error);
  }

  #openUtterance(id) {
    this.#open = new Utterance(id, this.#nextIndex++, this.#latestSettings.sample_rate);
    this.#unfinished.set(this.#open.index, this.#open);
  }

  get #latestSettings() {
    return this.#asked.at(-1) ?? this.#accepted;
  }

  #sendSettings() {
    const settings = this.#wanted;
    if (JSON.stringify(settings) === JSON.stringify(this.#latestSettings)) return;
    this.#asked.push(settings);
    this.#send({ type: "session.config", ...settings, ...FIXED_CONFIG });
  }

  #receiveMessage(message) {
    const handler = this.#handlers[message.type];
    if (handler) handler(message);
    else this.#complain(`the server sent ${JSON.stringify(message.type)}, which this page does not know`);
  }

  #handlers = {
    "session.configured": (message) => this.#configured(message),
    "session.pong": () => {},
    "audio.start": (message) => this.#startSentence(message),
    "audio.done": () => this.#finishSentence(),
    "session.done": (message) => this.#finishUtterance(message),
    "input.cancelled": (message) => this.#acknowledgeCancel(message),
    error: (message) => this.#receiveError(message),
  };

  #configured({ limits, ignored = [] }) {
    this.#accepted = this.#asked.shift() ?? this.#accepted;
    this.#onEvent({ type: "configured", limits, ignored });
  }

  #startSentence({ utterance_index: index, sentence_text: text, format, sample_rate: rate, channels }) {
    const utterance = this.#unfinished.get(index);
    if (!utterance) return this.#complain(`the server speaks utterance ${index}, which is not open`);
    if (format !== "pcm" || channels !== 1 || rate !== utterance.sampleRate) {
      return this.#refuseFormat(utterance, `${format} at ${rate} Hz with ${channels} channels`);
    }
    const sentence = { text, firstSample: utterance.samples, samples: 0 };
    this.#current = { utterance, sentence };
    if (utterance.stopped) return;
    utterance.sentences.push(sentence);
    this.#onEvent({ type: "sentence", utterance, sentence });
  }

  #refuseFormat(utterance, got) {
    const wanted = `pcm at ${utterance.sampleRate} Hz with 1 channel`;
    utterance.error = {
      code: "wrong_format",
      message: `the server answers with ${got}; this page asked for ${wanted}`,
    };
    utterance.stopped = true;
    if (this.#open === utterance) this.#open = null;
    this.#send({ type: "input.cancel", utterance_index: utterance.index });
  }

  #receiveAudio(buffer) {
    if (!this.#current) return this.#complain("the server sent audio outside of an utterance");
    const { utterance, sentence } = this.#current;
    if (utterance.acknowledged) this.framesAfterAck += 1;
    if (buffer.byteLength % 2) return this.#complain("the server sent half a sample");
    if (utterance.stopped || buffer.byteLength === 0) return;
    utterance.firstAudioAt ??= this.#now();
    const samples = new Int16Array(buffer);
    utterance.samples += samples.length;
    sentence.samples += samples.length;
    this.#onEvent({ type: "audio", utterance, samples });
  }

  #finishSentence() {
    this.#current = null;
  }

  #acknowledgeCancel({ utterance_index: index }) {
    const utterance = this.#unfinished.get(index);
    if (utterance) utterance.acknowledged = true;
  }

  #finishUtterance({ utterance_index: index, status, total_samples: total }) {
    const utterance = this.#unfinished.get(index);
    if (!utterance) return this.#complain(`the server ended utterance ${index}, which is not open`);
    utterance.totalSamples = total;
    if (status === "completed" && !utterance.stopped && utterance.samples !== total) {
      utterance.error ??= { code: "lost_audio", message: `${utterance.samples} of ${total} samples arrived` };
    }
    this.#end(utterance, utterance.error ? "failed" : status, utterance.error);
  }

  #end(utterance, status, error) {
    this.#unfinished.delete(utterance.index);
    if (this.#current?.utterance === utterance) this.#current = null;
    if (this.#open === utterance) this.#open = null;
    utterance.state = "ended";
    utterance.status = status;
    utterance.error = error;
    this.#onEvent({ type: "ended", utterance });
  }

  #receiveError(error) {
    if (error.fatal) {
      // The close frame follows, and ends what is unfinished with this reason.
      this.fatal = error;
      return;
    }
    const utterance = this.#unfinished.get(error.utterance_index);
    if (utterance) utterance.error = error;
    // A cancel that crossed the end of the last utterance: nothing is left of it, which is what was asked for.
    else if (error.code === "cancel_not_active") return;
    else if (this.#accepted === null) this.#refuse(error);
    else this.#complainOfSettings(error);
  }

  /** Nothing that was sent after the refused first settings was heard, so all of it ends with that reason. */
  #refuse(error) {
    if (this.ended) return;
    this.lose(error);
    this.#onEvent({ type: "refused", error });
  }

  #complainOfSettings(error) {
    this.#asked.shift();
    this.#onEvent({ type: "error", error });
  }

  #complain(message) {
    this.#onEvent({ type: "error", error: { code: "unexpected_message", message } });
  }
}
