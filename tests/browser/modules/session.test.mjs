// The protocol client against scripted server messages: what it sends and hands out, and that every utterance ends once.

import assert from "node:assert/strict";
import { test } from "node:test";

import { SpeechSession } from "../../../web/session.js";

const SETTINGS = { voice: "a", speed: 1, sample_rate: 24000 };

function openSession({ configured = true } = {}) {
  const sent = [];
  const events = [];
  let time = 1000;
  const session = new SpeechSession({
    send: (message) => sent.push(message),
    onEvent: (event) => events.push(event),
    now: () => time,
  });
  const say = (type, fields = {}) => session.receive(JSON.stringify({ type, ...fields }));
  session.configure(SETTINGS);
  if (configured) say("session.configured", { limits: { idle_s: 60 } });
  sent.length = 0;
  events.length = 0;
  const types = () => events.map(({ type }) => type);
  const start = (index, fields = {}) =>
    say("audio.start", {
      utterance_index: index,
      sentence_index: 0,
      sentence_text: "Hi.",
      format: "pcm",
      sample_rate: 24000,
      channels: 1,
      ...fields,
    });
  const audio = (frames) => session.receive(new Int16Array(frames).fill(7).buffer);
  const done = (index, total, status = "completed") =>
    say("session.done", { utterance_index: index, status, total_samples: total });
  return { session, sent, events, say, types, start, audio, done, at: (ms) => (time = ms) };
}

test("the first message configures pcm, streamed, by sentence, acknowledged", () => {
  const sent = [];
  const session = new SpeechSession({ send: (message) => sent.push(message), onEvent: () => {}, now: () => 0 });
  session.configure(SETTINGS);
  session.configure({ ...SETTINGS });
  assert.deepEqual(sent, [
    {
      type: "session.config",
      ...SETTINGS,
      response_format: "pcm",
      stream_audio: true,
      split_granularity: "sentence",
      ack: true,
    },
  ]);
});

test("text and its end go out byte-exact, and audio comes back with its times", () => {
  const { session, sent, events, types, start, audio, done, say, at } = openSession();
  const utterance = session.append("Hi.");
  session.append(" \n");
  session.finish();
  assert.deepEqual(sent, [
    { type: "input.text", text: "Hi." },
    { type: "input.text", text: " \n" },
    { type: "input.done" },
  ]);
  start(0);
  at(1042);
  audio(100);
  at(1080);
  audio(20);
  say("audio.done", { utterance_index: 0, sentence_index: 0, total_samples: 120, error: false });
  done(0, 120);
  assert.deepEqual(types(), ["sentence", "audio", "audio", "ended"]);
  assert.equal(events[1].samples[0], 7);
  assert.equal(utterance.firstAudioAt - utterance.textAt, 42);
  assert.equal(utterance.status, "completed");
  assert.deepEqual(utterance.sentences, [{ text: "Hi.", firstSample: 0, samples: 120 }]);
});

test("several utterances on one connection count up, under the names they were given", () => {
  const { session, start, audio, done, events } = openSession();
  const first = session.append("One.", 11);
  session.finish();
  const second = session.append("Two.", 12);
  session.finish();
  assert.deepEqual([first.index, second.index], [0, 1]);
  start(0);
  audio(10);
  done(0, 10);
  start(1);
  audio(20);
  done(1, 20);
  assert.deepEqual([first.samples, second.samples], [10, 20]);
  assert.equal(events.filter(({ type }) => type === "ended").length, 2);
  assert.deepEqual([first.id, second.id], [11, 12]);
});

test("settings that change while an utterance is open wait for its end", () => {
  const { session, sent } = openSession();
  session.append("One.");
  session.configure({ ...SETTINGS, speed: 2 });
  assert.deepEqual(
    sent.map(({ type }) => type),
    ["input.text"],
  );
  session.finish();
  assert.deepEqual(
    sent.map(({ type }) => type),
    ["input.text", "input.done", "session.config"],
  );
  assert.equal(sent.at(-1).speed, 2);
});

test("S50: after a stop no audio is handed out, though the server may still send some before its acknowledgement", () => {
  const { session, sent, types, start, audio, done, say } = openSession();
  const utterance = session.append("One.");
  session.finish();
  start(0);
  audio(10);
  session.cancel();
  assert.deepEqual(sent.at(-1), { type: "input.cancel" });
  audio(10);
  say("input.cancelled", { utterance_index: 0, samples_sent: 20 });
  done(0, 20, "cancelled");
  assert.deepEqual(types(), ["sentence", "audio", "ended"]);
  assert.equal(utterance.status, "cancelled");
  assert.equal(utterance.samples, 10);
  assert.equal(session.framesAfterAck, 0);
});

test("S37: audio after the acknowledgement is counted, and not handed out", () => {
  const { session, types, start, audio, say } = openSession();
  session.append("One.");
  session.finish();
  start(0);
  session.cancel();
  say("input.cancelled", { utterance_index: 0, samples_sent: 0 });
  audio(10);
  assert.equal(session.framesAfterAck, 1);
  assert.deepEqual(types(), ["sentence"]);
});

test("S38: a stop before the first audio, then new text at once, gives the new utterance its own index and audio", () => {
  const { session, sent, start, audio, done, say } = openSession();
  const open = session.append("Half a sent");
  session.cancel();
  const next = session.append("Next.");
  session.finish();
  assert.deepEqual(
    sent.map(({ type }) => type),
    ["input.text", "input.cancel", "input.text", "input.done"],
  );
  assert.deepEqual([open.index, next.index], [0, 1]);
  say("input.cancelled", { utterance_index: 0, samples_sent: 0 });
  done(0, 0, "cancelled");
  start(1);
  audio(5);
  done(1, 5);
  assert.deepEqual([open.status, next.status], ["cancelled", "completed"]);
});

test("a stop with nothing unfinished sends nothing; one that crosses the end is no error", () => {
  const { session, sent, events, say } = openSession();
  session.cancel();
  assert.deepEqual(sent, []);
  say("error", { code: "cancel_not_active", message: "nothing to cancel", fatal: false });
  assert.deepEqual(events, []);
});

test("a failed utterance ends once, with the server's words", () => {
  const { session, events, start, audio, say, done } = openSession();
  const utterance = session.append("Привет.");
  session.finish();
  start(0);
  audio(4);
  say("error", { code: "unsupported_language", message: "no Cyrillic", utterance_index: 0, fatal: false });
  say("audio.done", { utterance_index: 0, sentence_index: 0, error: true });
  done(0, 4, "failed");
  assert.equal(utterance.status, "failed");
  assert.equal(utterance.error.code, "unsupported_language");
  assert.equal(events.filter(({ type }) => type === "ended").length, 1);
});

test("refused first settings end everything that was sent after them, once", () => {
  const { session, events, types, say } = openSession({ configured: false });
  const utterance = session.append("Hi.");
  session.finish();
  say("error", { code: "invalid_value", message: "speed is 9", param: "speed", fatal: false });
  say("error", { code: "config_required", message: "config first", fatal: false });
  assert.deepEqual(types(), ["ended", "refused"]);
  assert.equal(utterance.error.param, "speed");
  assert.equal(events[1].error.param, "speed");
});

test("refused later settings are told, and asked for again only when they change", () => {
  const { session, sent, events, say } = openSession();
  session.configure({ ...SETTINGS, speed: 9 });
  say("error", { code: "invalid_value", message: "speed is 9", param: "speed", fatal: false });
  assert.equal(events.at(-1).error.param, "speed");
  session.configure(SETTINGS);
  assert.equal(sent.length, 1);
});

test("a lost connection ends everything unfinished, with the fatal error the server gave", () => {
  const { session, types, say } = openSession();
  const speaking = session.append("One.");
  session.finish();
  const open = session.append("Two");
  say("error", { code: "shutting_down", message: "going", fatal: true });
  session.lose({ code: "connection_lost", message: "gone" });
  session.lose({ code: "connection_lost", message: "gone" });
  assert.deepEqual([speaking.error.code, open.error.code], ["shutting_down", "shutting_down"]);
  assert.deepEqual(types(), ["ended", "ended"]);
});

test("S9: audio at another rate or format than was asked for is refused, not played", () => {
  for (const fields of [{ sample_rate: 12000 }, { format: "wav" }, { channels: 2 }]) {
    const { session, sent, start, audio, done, types } = openSession();
    const utterance = session.append("Hi.");
    session.finish();
    start(0, fields);
    assert.deepEqual(sent.at(-1), { type: "input.cancel", utterance_index: 0 });
    audio(10);
    done(0, 0, "cancelled");
    assert.equal(utterance.error.code, "wrong_format");
    assert.equal(types().includes("audio"), false);
  }
});

test("S7: half a sample is refused by name", () => {
  const { session, events, start } = openSession();
  session.append("Hi.");
  start(0);
  session.receive(new Uint8Array(3).buffer);
  assert.match(events.at(-1).error.message, /half a sample/);
});

test("audio that got lost on the way is a failure, not a short success", () => {
  const { session, start, audio, done } = openSession();
  const utterance = session.append("Hi.");
  session.finish();
  start(0);
  audio(10);
  done(0, 11);
  assert.equal(utterance.status, "failed");
  assert.match(utterance.error.message, /10 of 11 samples/);
});

test("an empty utterance ends without a sentence", () => {
  const { session, types, done } = openSession();
  session.append("🙂");
  session.finish();
  done(0, 0);
  assert.deepEqual(types(), ["ended"]);
});

test("an unknown message is told, and the session goes on", () => {
  const { session, events, say, done, types } = openSession();
  say("audio.surprise");
  assert.match(events[0].error.message, /audio\.surprise/);
  session.append("Hi.");
  session.finish();
  done(0, 0);
  assert.deepEqual(types(), ["error", "ended"]);
});
