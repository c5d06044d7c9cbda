// The connection on a thread of its own: audio goes from the socket straight to the audio thread, so that a busy page
// never starves it. The page gets copies, for the waveform and for replay. `wire.js` is the page's end.

import { Link } from "./link.js";
import { messagesOf } from "./sentences.js";

let link = null;
let audioThread = null;

// One clock for worker and page: their `performance.now()` have different zeros.
const now = () => performance.timeOrigin + performance.now();

const commands = {
  open({ url }) {
    const environment = {
      WebSocket,
      setTimeout: (action, delay) => setTimeout(action, delay),
      clearTimeout: (timer) => clearTimeout(timer),
      now,
    };
    link = new Link({ url, environment, onState: tellState, onEvent: relay });
  },
  connect: ({ port }) => (audioThread = port),
  configure: ({ settings }) => link.configure(settings),
  inUse: ({ inUse }) => link.setInUse(inUse),
  unlock: ({ key }) => link.unlock(key),
  use: () => link.use(),
  speak({ id, text }) {
    const session = link.use();
    for (const message of messagesOf(text)) session.append(message, id);
    session.finish();
  },
  cancel: () => link.session?.cancel(),
};

onmessage = ({ data }) => commands[data.type](data);

function tellState({ state, error, retryAt, connections }) {
  postMessage({ type: "state", state, error, retryAt, connections });
}

function relay({ type, utterance, samples, sentence, error }) {
  if (type === "audio") relayAudio(utterance, samples);
  else if (type === "ended") relayEnd(utterance);
  else if (type === "sentence") postMessage({ type, id: utterance.id, sentence });
  else if (type === "error" || type === "refused") postMessage({ type: "error", error });
}

function relayAudio({ id, firstAudioAt }, samples) {
  const copy = samples.slice();
  audioThread.postMessage({ type: "append", reply: id, samples }, [samples.buffer]);
  postMessage({ type: "audio", id, samples: copy, firstAudioAt }, [copy.buffer]);
}

function relayEnd({ id, status, error, samples, totalSamples, stopped }) {
  if (samples > 0) audioThread.postMessage({ type: "drain", reply: id });
  const { framesAfterAck } = link.session ?? { framesAfterAck: 0 };
  postMessage({ type: "ended", id, status, error, samples, totalSamples, stopped, framesAfterAck });
}
