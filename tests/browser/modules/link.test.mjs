// The connection's life on a scripted socket and a hand-moved clock: idle closes, retries, keys, pings.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Link } from "../../../web/link.js";

const SETTINGS = { speed: 1, sample_rate: 24000 };

class ScriptedSocket {
  static OPEN = 1;
  OPEN = 1;
  readyState = 0;
  sent = [];

  constructor(url, protocols) {
    Object.assign(this, { url, protocols });
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close() {
    this.readyState = 3;
  }

  open() {
    this.readyState = 1;
    this.onopen();
  }

  say(type, fields = {}) {
    this.onmessage({ data: JSON.stringify({ type, ...fields }) });
  }

  end(code, reason = "") {
    this.readyState = 3;
    this.onclose?.({ code, reason });
  }

  types() {
    return this.sent.map(({ type }) => type);
  }
}

function openLink() {
  const sockets = [];
  const timers = new Map();
  const states = [];
  const events = [];
  let time = 0;
  let lastTimer = 0;
  const environment = {
    WebSocket: function (url, protocols) {
      sockets.push(new ScriptedSocket(url, protocols));
      return sockets.at(-1);
    },
    setTimeout: (action, delay) => {
      timers.set(++lastTimer, { action, at: time + delay });
      return lastTimer;
    },
    clearTimeout: (id) => timers.delete(id),
    now: () => time,
  };
  const link = new Link({
    url: "ws://host/stream",
    environment,
    onState: ({ state }) => states.push(state),
    onEvent: (event) => events.push(event),
  });
  link.configure(SETTINGS);
  const pass = (ms) => {
    const until = time + ms;
    for (;;) {
      const due = [...timers].filter(([, { at }]) => at <= until).sort((a, b) => a[1].at - b[1].at)[0];
      if (!due) break;
      timers.delete(due[0]);
      time = due[1].at;
      due[1].action();
    }
    time = until;
  };
  const connect = () => {
    link.use();
    sockets.at(-1).open();
    sockets.at(-1).say("session.configured", { limits: { idle_s: 60 } });
    return sockets.at(-1);
  };
  return { link, sockets, states, events, timers, pass, connect };
}

test("what is said while connecting goes out in order once the connection is open", () => {
  const { link, sockets, states } = openLink();
  link.use().append("Hi.");
  link.session.finish();
  assert.deepEqual(sockets[0].sent, []);
  sockets[0].open();
  assert.deepEqual(sockets[0].types(), ["session.config", "input.text", "input.done"]);
  sockets[0].say("session.configured", { limits: {} });
  assert.deepEqual(states, ["connecting", "open"]);
});

test("one connection serves many utterances", () => {
  const { link, sockets, connect } = openLink();
  connect();
  link.use().append("One.");
  link.session.finish();
  link.use().append("Two.");
  link.session.finish();
  assert.equal(sockets.length, 1);
});

test("S56: an idle close is silent, and the next use opens a fresh session with the same settings", () => {
  const { link, sockets, states, events, connect, pass } = openLink();
  const socket = connect();
  socket.say("error", { code: "idle_timeout", message: "idle", fatal: true });
  socket.end(4000, "idle");
  pass(60_000);
  assert.equal(link.state, "resting");
  assert.equal(sockets.length, 1);
  link.use().append("Hi.");
  sockets[1].open();
  assert.deepEqual(sockets[1].types(), ["session.config", "input.text"]);
  assert.deepEqual(states, ["connecting", "open", "resting", "connecting"]);
  assert.equal(
    events.some(({ type }) => type === "ended"),
    false,
  );
});

test("S56: while the page is in use, pings keep the session; hidden, it is left to end", () => {
  const { link, connect, pass } = openLink();
  const socket = connect();
  link.setInUse(true);
  pass(61_000);
  assert.deepEqual(socket.types(), ["session.config", "session.ping", "session.ping", "session.ping"]);
  link.setInUse(false);
  pass(120_000);
  assert.equal(socket.types().length, 4);
});

test("a full server is asked again after the time it gave", () => {
  const { link, sockets, pass } = openLink();
  link.setInUse(true);
  const utterance = link.use().append("Hi.");
  sockets[0].open();
  sockets[0].say("error", { code: "overloaded", message: "full", retry_after_ms: 700, fatal: true });
  sockets[0].end(1013, "overloaded");
  assert.equal(link.state, "waiting");
  assert.equal(link.error.code, "overloaded");
  assert.equal(link.retryAt, 700);
  assert.equal(utterance.error.retry_after_ms, 700);
  pass(699);
  assert.equal(sockets.length, 1);
  pass(1);
  assert.equal(sockets.length, 2);
});

test("an unreachable server is tried again, less and less often, while the page is in use", () => {
  const { link, sockets, pass } = openLink();
  link.setInUse(true);
  const delays = [];
  let elapsed = 0;
  for (let n = 0; n < 6; n++) {
    sockets.at(-1).end(1006);
    assert.equal(link.error.code, "unreachable");
    delays.push(link.retryAt - elapsed);
    pass(delays.at(-1));
    elapsed += delays.at(-1);
  }
  assert.deepEqual(delays, [1000, 2000, 4000, 8000, 15_000, 15_000]);
});

test("a lost connection is not tried again for a hidden page until it is used", () => {
  const { link, sockets, connect, pass } = openLink();
  connect().end(1006);
  pass(60_000);
  assert.equal(sockets.length, 1);
  link.use();
  assert.equal(sockets.length, 2);
});

test("a server that wants a key gets it as a subprotocol, and is not pestered without one", () => {
  const { link, sockets, pass } = openLink();
  link.setInUse(true);
  assert.deepEqual(sockets[0].protocols, ["streamsynth"]);
  sockets[0].open();
  sockets[0].say("error", { code: "unauthorized", message: "a key is needed", fatal: true });
  sockets[0].end(1008, "unauthorized");
  assert.equal(link.state, "locked");
  pass(600_000);
  assert.equal(sockets.length, 1);
  link.unlock("k3y");
  assert.deepEqual(sockets[1].protocols, ["streamsynth", "bearer.k3y"]);
});

test("a handshake that never completes is given up", () => {
  const { link, pass } = openLink();
  link.use();
  pass(10_000);
  assert.equal(link.state, "waiting");
  assert.equal(link.error.code, "unreachable");
});

test("an utterance in flight ends with the reason when the connection is lost", () => {
  const { link, events, connect } = openLink();
  const socket = connect();
  const utterance = link.use().append("Hi.");
  socket.say("error", { code: "shutting_down", message: "going", fatal: true });
  socket.end(1001, "shutting down");
  assert.equal(utterance.status, "failed");
  assert.equal(utterance.error.code, "shutting_down");
  assert.equal(events.filter(({ type }) => type === "ended").length, 1);
});

test("refused settings end the connection, so that the next use starts with better ones", () => {
  const { link, sockets, events } = openLink();
  link.use().append("Hi.");
  sockets[0].open();
  sockets[0].say("error", { code: "invalid_value", message: "speed", param: "speed", fatal: false });
  assert.equal(link.state, "resting");
  assert.deepEqual(
    events.map(({ type }) => type),
    ["ended", "refused"],
  );
  link.configure({ ...SETTINGS, speed: 2 });
  link.use();
  sockets[1].open();
  assert.equal(sockets[1].sent[0].speed, 2);
});
