// What went wrong, in plain words.

const SENTENCES = {
  overloaded: "The server is full at the moment.",
  unauthorized: "This server needs a key.",
  forbidden: "This server does not serve pages from this address.",
  unreachable: "The server cannot be reached.",
  shutting_down: "The server is shutting down.",
  connection_lost: "The connection was lost.",
  connection_closed: "The connection was closed.",
  worker_died: "The model stopped working and is being restarted.",
  stalled_engine: "The model got stuck.",
  stalled_reader: "This page fell too far behind, so the server ended the connection.",
  start_failed: "The model could not be started.",
  unsupported_language: "This voice cannot speak that language.",
  text_too_long: "The text is too long.",
  no_speech: "No model of this server speaks: it makes video.",
  interrupted: "The server ended before it was finished.",
  interaction_failed: "The model cannot do that.",
  interaction_queue_full: "Too many changes wait.",
};

const FIELDS = {
  speed: "Speed",
  voice: "Voice",
  model: "Model",
  text: "Text",
  sample_rate: "Sample rate",
};

const REPEATED = new Set(["unauthorized", "forbidden", "unreachable", "connection_lost", "connection_closed"]);

/** One or two sentences about a server error `{code, message, param}`, naming the field if the server named one. */
export function inWords({ code, message = "", param }) {
  const detail = REPEATED.has(code) ? "" : sentence(named(message, param));
  return [SENTENCES[code], detail].filter(Boolean).join(" ") || `The server answered “${code}”.`;
}

function named(message, param) {
  if (!param) return message;
  const label = FIELDS[param] ?? param;
  if (message.startsWith(`${param} `)) return label + message.slice(param.length);
  return message.includes(param) ? message : `${label}: ${message}`;
}

const sentence = (text) => {
  const trimmed = text.trim();
  if (!trimmed) return "";
  const closed = /[.!?]$/.test(trimmed) ? trimmed : `${trimmed}.`;
  return closed[0].toUpperCase() + closed.slice(1);
};

/** 0:07, 12:03. */
export function clockTime(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** 4.2 s, 1 min 05 s. */
export function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
}

/** 41 ms, 1.20 s. */
export function milliseconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
}
