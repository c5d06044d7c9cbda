// The box that is typed into: what is handed over, and when.

import { endsSentence, splitFinished } from "./sentences.js";

const PAUSE_MS = 900;
const HINTS = {
  typing:
    "Each sentence is spoken as soon as you finish it. Enter speaks the rest and ends the take. Shift+Enter: new line.",
  enter: "Enter speaks the text. Shift+Enter: new line. Write the next one while this one is spoken.",
};
const MODE_KEY = "streamsynth.mode";

/**
 * Calls `onText(text)` with text to be spoken now, in order and byte-exact; `onEnd()` when the take is complete; and
 * `onTouch()` on the first sign of use, so that sound and connection can be made ready.
 */
export class Composer {
  #text;
  #modes;
  #pause = null;
  #limit = Infinity;

  /** Set where there can be no sound: then nothing leaves the box. */
  blocked = false;

  constructor({ text, modes, hint, page, onText, onEnd, onTouch }) {
    this.#text = text;
    this.#modes = [...modes];
    Object.assign(this, { onText, onEnd, onTouch, hint });
    this.mode = localStorage.getItem(MODE_KEY) === "enter" ? "enter" : "typing";
    for (const radio of this.#modes) {
      radio.checked = radio.value === this.mode;
      radio.addEventListener("change", () => this.#setMode(radio.value));
    }
    text.addEventListener("input", (event) => this.#typed(event));
    text.addEventListener("keydown", (event) => this.#keyPressed(event));
    page.addEventListener("click", () => getSelection().isCollapsed && text.focus());
    this.#showHint();
  }

  get value() {
    return this.#text.value;
  }

  /** Code points over the server's limit; 0 when the text fits. */
  get excess() {
    if (this.value.length <= this.#limit) return 0;
    return Math.max(0, [...this.value].length - this.#limit);
  }

  /** Whether there is something that could be spoken. */
  get ready() {
    return !this.blocked && this.excess === 0 && this.value.trim() !== "";
  }

  limitTo(characters) {
    this.#limit = characters;
  }

  /** Puts the caret behind the text. The blur is for chromium, whose caret is lost once a dialog gave the focus back. */
  focus() {
    this.#text.blur();
    this.#text.focus();
    this.#text.setSelectionRange(this.value.length, this.value.length);
  }

  /** Replaces the text, to be edited. */
  set(text) {
    this.#text.value = text;
    this.#resize();
    this.focus();
  }

  /** Puts text that could not be spoken back before what was written since. */
  giveBack(text) {
    this.#keep(text + this.value);
  }

  /** Hands over everything that is in the box and ends the take. */
  speakAll() {
    clearTimeout(this.#pause);
    if (this.ready) this.#handOver(this.value, "");
    if (this.value === "") this.onEnd();
  }

  #setMode(mode) {
    this.mode = mode;
    localStorage.setItem(MODE_KEY, mode);
    this.#showHint();
  }

  #showHint() {
    this.hint.textContent = HINTS[this.mode];
  }

  #keyPressed(event) {
    this.onTouch();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.speakAll();
  }

  #typed({ inputType, isComposing }) {
    this.onTouch();
    clearTimeout(this.#pause);
    this.#resize();
    if (this.mode !== "typing" || isComposing || !this.#writesAtEnd || !this.ready) return;
    if (inputType === "insertFromPaste") return void this.speakAll();
    const { finished, rest } = splitFinished(this.value);
    if (finished) this.#handOver(finished, rest);
    this.#pause = setTimeout(() => this.#paused(), PAUSE_MS);
  }

  /** Someone who changes the middle of a text has not finished what stands before. */
  get #writesAtEnd() {
    return this.#text.selectionStart === this.value.length;
  }

  #paused() {
    if (this.ready && this.#writesAtEnd && endsSentence(this.value)) this.#handOver(this.value, "");
  }

  #handOver(text, rest) {
    if (!text.trim()) return;
    this.#keep(rest);
    this.onText(text);
  }

  #keep(text) {
    this.#text.value = text;
    this.#resize();
  }

  #resize() {
    this.#text.style.height = "auto";
    this.#text.style.height = `${this.#text.scrollHeight}px`;
  }
}
