// The connection below a SpeechSession: opened when needed, kept while the page is in use, reopened after it was lost.

import { SpeechSession } from "./session.js";

const CONNECT_TIMEOUT_MS = 10_000;
const RETRY_DELAYS_MS = [1000, 2000, 4000, 8000, 15_000];
const PINGS_PER_IDLE_LIMIT = 3;
const DEFAULT_IDLE_S = 60;

const CLOSED_IDLE = 4000;
const CLOSED_NORMALLY = 1000;

/**
 * States: `resting` (no connection, none needed), `connecting`, `open`, `waiting` (tries again at `retryAt`),
 * `locked` (the server wants a key, or another one). `error` says why it waits or is locked, also while it tries again.
 *
 * `onState(link)` is called at each change. `onEvent` gets the session's events.
 */
export class Link {
  #url;
  #onState;
  #onEvent;
  #environment;
  #settings = null;
  #socket = null;
  #session = null;
  #outbox = [];
  #timers = { connect: null, retry: null, ping: null };
  #idleMs = DEFAULT_IDLE_S * 1000;
  #failures = 0;
  #inUse = false;

  state = "resting";
  error = null;
  retryAt = null;
  key = null;
  connections = 0;

  /** `environment` is what a browser offers: WebSocket, setTimeout, clearTimeout, now. */
  constructor({ url, onState, onEvent, environment }) {
    this.#url = url;
    this.#onState = onState;
    this.#onEvent = onEvent;
    this.#environment = environment;
  }

  get session() {
    return this.#session;
  }

  configure(settings) {
    this.#settings = settings;
    this.#session?.configure(settings);
  }

  /** The session to speak through. What is sent before the connection is open waits for it. */
  use() {
    if (!this.#session) this.#connect();
    return this.#session;
  }

  /** While in use (the page is visible) the session is kept alive and a lost connection is tried again. */
  setInUse(inUse) {
    if (this.#inUse === inUse) return;
    this.#inUse = inUse;
    if (inUse && this.state !== "locked") this.use();
    if (!inUse) this.#clear("retry");
    this.#schedulePing();
  }

  /** Connects again with another key (null: without one). */
  unlock(key) {
    this.key = key;
    this.close();
    return this.use();
  }

  /** Lets go of the connection; whatever is unfinished ends as lost. */
  close() {
    this.#drop({ code: "connection_closed", message: "The connection was closed." });
    this.#become("resting");
  }

  #connect() {
    const { WebSocket, now } = this.#environment;
    this.#clear("retry");
    const protocols = this.key ? ["streamsynth", `bearer.${this.key}`] : ["streamsynth"];
    const socket = new WebSocket(this.#url, protocols);
    socket.binaryType = "arraybuffer";
    this.connections += 1;
    this.#socket = socket;
    this.#outbox = [];
    this.#session = new SpeechSession({
      send: (message) => this.#send(socket, message),
      onEvent: (event) => this.#relay(socket, event),
      now,
    });
    this.#session.configure(this.#settings);
    socket.onopen = () => this.#opened(socket);
    socket.onmessage = ({ data }) => this.#session.receive(data);
    socket.onclose = ({ code, reason }) => this.#closed(code, reason);
    this.#start("connect", CONNECT_TIMEOUT_MS, () => this.#closed(null, ""));
    this.#become("connecting", this.error);
  }

  #send(socket, message) {
    if (socket.readyState === socket.OPEN) socket.send(JSON.stringify(message));
    else this.#outbox.push(message);
    this.#schedulePing();
  }

  #opened(socket) {
    this.#clear("connect");
    const waiting = this.#outbox;
    this.#outbox = [];
    for (const message of waiting) this.#send(socket, message);
  }

  #relay(socket, event) {
    if (event.type === "configured") {
      this.#failures = 0;
      this.#idleMs = (event.limits?.idle_s ?? DEFAULT_IDLE_S) * 1000;
      this.#schedulePing();
      this.#become("open");
    }
    this.#onEvent(event);
    if (event.type === "refused" && socket === this.#socket) this.close();
  }

  #closed(code, reason) {
    const error = this.#session.fatal ?? endingError(code, reason);
    this.#drop(error);
    if (error.code === "unauthorized" || error.code === "forbidden") this.#become("locked", error);
    else if (code === CLOSED_IDLE || code === CLOSED_NORMALLY) this.#become("resting");
    else this.#waitAndRetry(error);
  }

  #waitAndRetry(error) {
    const delay = error.retry_after_ms ?? RETRY_DELAYS_MS[Math.min(this.#failures, RETRY_DELAYS_MS.length - 1)];
    this.#failures += 1;
    this.retryAt = this.#environment.now() + delay;
    if (this.#inUse) this.#start("retry", delay, () => this.use());
    this.#become("waiting", error);
  }

  /** Detaches the socket first: nothing that still arrives on it belongs to what comes next. */
  #drop(error) {
    const [socket, session] = [this.#socket, this.#session];
    this.#socket = null;
    this.#session = null;
    this.#clear("connect");
    this.#clear("retry");
    this.#clear("ping");
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
    session.lose(error);
  }

  #schedulePing() {
    this.#clear("ping");
    if (!this.#inUse || this.state !== "open") return;
    this.#start("ping", this.#idleMs / PINGS_PER_IDLE_LIMIT, () => this.#session.ping());
  }

  #become(state, error = null) {
    this.state = state;
    this.error = error;
    if (state !== "waiting") this.retryAt = null;
    this.#onState(this);
  }

  #start(name, delay, action) {
    this.#clear(name);
    this.#timers[name] = this.#environment.setTimeout(action, delay);
  }

  #clear(name) {
    this.#environment.clearTimeout(this.#timers[name]);
    this.#timers[name] = null;
  }
}

function endingError(code, reason) {
  if (code === CLOSED_IDLE) return { code: "idle_timeout", message: "The server closed the idle connection." };
  if (code === 1001) return { code: "shutting_down", message: "The server is shutting down." };
  if (code === 1006 || code === null) return { code: "unreachable", message: "The server cannot be reached." };
  return { code: "connection_lost", message: reason || `The connection ended (code ${code}).` };
}
