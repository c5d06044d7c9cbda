// The video socket's end in the page: pairs stay pairs, and every end is said once.

import assert from "node:assert/strict";
import { test } from "node:test";

import { VideoLink } from "../../../web/video-link.js";

class FakeSocket extends EventTarget {
  static OPEN = 1;
  static last = null;
  readyState = 1;
  sent = [];

  constructor(url, protocols) {
    super();
    Object.assign(this, { url, protocols });
    FakeSocket.last = this;
  }

  send(data) {
    this.sent.push(JSON.parse(data));
  }

  close() {
    this.readyState = 3;
  }

  receive(message) {
    const data = message instanceof ArrayBuffer ? message : JSON.stringify(message);
    this.dispatchEvent(Object.assign(new Event("message"), { data }));
  }

  end(code, reason = "") {
    this.dispatchEvent(Object.assign(new Event("close"), { code, reason }));
  }
}

globalThis.WebSocket = FakeSocket;

function connecting(key = null) {
  const said = [];
  const names = ["start", "payload", "queued", "applied", "superseded", "refused", "error", "end"];
  const on = Object.fromEntries(names.map((name) => [name, (...values) => said.push([name, ...values])]));
  const link = new VideoLink({ url: "ws://x", key, start: { prompt: "red" }, on, position: () => null });
  return { link, socket: FakeSocket.last, said };
}

function open(key = null) {
  const opened = connecting(key);
  opened.socket.dispatchEvent(new Event("open"));
  return opened;
}

const metadata = { type: "video.chunk_metadata", kind: "media", timescale: 16_000, pts: 9000 };

test("it starts with receipts, and offers a key without showing it in the address", () => {
  const { link, socket } = open("secret");
  assert.deepEqual(socket.sent, [{ type: "session.start", receipts: true, prompt: "red" }]);
  assert.deepEqual(socket.protocols, ["streamsynth", "bearer.secret"]);
  assert.equal(socket.url, "ws://x");
  link.abandon();
});

test("stopped while it starts it is over at once, whether the server has heard of it or not", () => {
  const heard = open();
  heard.link.stop();
  heard.socket.receive({ type: "video.start" });
  assert.deepEqual(heard.said, [["end", null]]);
  assert.equal(heard.socket.readyState, 3);
  const unheard = connecting();
  unheard.link.stop();
  unheard.socket.dispatchEvent(new Event("open"));
  assert.deepEqual([unheard.said, unheard.socket.sent], [[["end", null]], []]);
});

test("stopped while it runs it ends when the server says so", () => {
  const { link, socket, said } = open();
  socket.receive({ type: "video.start" });
  link.stop();
  assert.equal(socket.sent.at(-1).type, "session.stop");
  assert.deepEqual(said.map(([name]) => name), ["start"]);
  link.abandon();
});

test("each payload comes with the metadata before it, and receipts with their place in seconds", () => {
  const { link, socket, said } = open();
  const data = new ArrayBuffer(3);
  socket.receive(metadata);
  socket.receive(data);
  socket.receive({ type: "session.interaction.applied", event_id: "a", pts: 24_000 });
  assert.deepEqual(said, [
    ["payload", metadata, data],
    ["applied", "a", 1.5],
  ]);
  link.abandon();
});

test("a refused interaction ends nothing, a refused start ends all", () => {
  const running = open();
  running.socket.receive(metadata);
  running.socket.receive({ type: "error", code: "interaction_failed", event_id: "a", fatal: false });
  assert.equal(running.said.at(-1)[0], "refused");
  running.link.abandon();
  const refused = open();
  refused.socket.receive({ type: "error", code: "invalid_value", fatal: false });
  assert.deepEqual(refused.said.map(([name]) => name), ["error", "end"]);
});

test("the end is said once, with what the server said of it, and a lost connection as that", () => {
  const whole = open();
  const done = { type: "session.done", frames: 9 };
  whole.socket.receive(done);
  whole.socket.end(1000);
  whole.socket.end(1000);
  assert.deepEqual(whole.said, [["end", done]]);
  const lost = open();
  lost.socket.receive(metadata);
  lost.socket.end(1006);
  assert.deepEqual(lost.said, [["error", { code: "connection_lost", message: "" }], ["end", null]]);
});
