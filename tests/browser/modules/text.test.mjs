// Pure functions on text: what is handed over while typing, how it is cut into messages, what errors say.

import assert from "node:assert/strict";
import { test } from "node:test";

import { endsSentence, locateSentences, messagesOf, splitFinished } from "../../../web/sentences.js";
import { clockTime, duration, inWords, milliseconds } from "../../../web/words.js";

const finished = (text) => splitFinished(text).finished;

test("a sentence is handed over once the typist has moved on, with the space behind it", () => {
  assert.deepEqual(splitFinished("Hello there. How a"), { finished: "Hello there. ", rest: "How a" });
  assert.equal(finished("Hello there."), "");
  assert.equal(finished("Really?! Yes"), "Really?! ");
  assert.equal(finished('"Stop!" he said'), '"Stop!" ');
  assert.equal(finished("One. Two. Thr"), "One. Two. ");
  assert.equal(finished("A title\n\nand more"), "A title\n\n");
  assert.equal(finished("你好。很"), "你好。");
});

test("S59: abbreviations, initials, numbers and ellipses do not end a sentence", () => {
  for (const text of [
    "Dr. Smith",
    "e.g. this",
    "J. K. Rowling",
    "98.6 degrees",
    "v2.0.1 is",
    "3. item",
    "Well... I",
    "U.S. Army",
  ]) {
    assert.equal(finished(text), "", text);
  }
  assert.equal(finished("I saw Dr. Smith. He"), "I saw Dr. Smith. ");
});

test("S62: however text is split while typing, its pieces join to the same text", () => {
  const text = "  One.  Two!\nThree? Dr. No. And  the rest ";
  let [typed, handedOver] = ["", ""];
  for (const letter of text) {
    const split = splitFinished(typed + letter);
    handedOver += split.finished;
    typed = split.rest;
  }
  assert.equal(handedOver + typed, text);
});

test("a run of 64 Ki marks or letters is split as a short one is", () => {
  for (const run of ["a", ".", '."', "!"]) assert.equal(finished(run.repeat(65_536)), "");
  assert.equal(splitFinished("\n".repeat(65_536)).rest, "");
});

test("a text can end where a sentence ends, also inside quotes", () => {
  assert.ok(endsSentence("Hello there."));
  assert.ok(endsSentence("He said “no.” "));
  assert.ok(!endsSentence("Hello there"));
  assert.ok(!endsSentence(""));
});

test("long text is cut into messages that join to it and never cut through a character", () => {
  const text = "a" + "😀".repeat(50);
  const messages = messagesOf(text, 10);
  assert.equal(messages.join(""), text);
  assert.ok(messages.every((message) => message.length <= 10 && message.isWellFormed()));
  assert.deepEqual(messagesOf(""), []);
});

test("the server's sentences are found in the typed text in order, and a rewritten one is left out", () => {
  const text = "Yes. No. Yes. It is 5%.";
  assert.deepEqual(locateSentences(text, ["Yes.", "No.", " Yes. ", "It is five percent.", null]), [
    { from: 0, to: 4 },
    { from: 5, to: 8 },
    { from: 9, to: 13 },
    null,
    null,
  ]);
});

test("errors are told in plain words, with the field", () => {
  assert.equal(
    inWords({ code: "invalid_value", message: "speed is 9; it must be within 0.5..2", param: "speed" }),
    "Speed is 9; it must be within 0.5..2.",
  );
  assert.equal(
    inWords({ code: "unknown_field", message: "not known", param: "colour" }),
    "colour: not known.".replace("c", "C"),
  );
  assert.equal(inWords({ code: "unreachable", message: "whatever" }), "The server cannot be reached.");
  assert.equal(
    inWords({ code: "overloaded", message: "256 utterances are speaking" }),
    "The server is full at the moment. 256 utterances are speaking.",
  );
  assert.equal(inWords({ code: "brand_new" }), "The server answered “brand_new”.");
});

test("times are written as people read them", () => {
  assert.deepEqual([clockTime(7.9), clockTime(723)], ["0:07", "12:03"]);
  assert.deepEqual([duration(4.23), duration(65)], ["4.2 s", "1 min 05 s"]);
  assert.deepEqual([milliseconds(41.4), milliseconds(1204)], ["41 ms", "1.20 s"]);
});
