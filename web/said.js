// The text that has left the box: what was said, what is being said, what comes.

import { locateSentences } from "./sentences.js";

/** Shows one take above the box, with the sentence that is being heard marked. */
export class Said {
  #element;
  #shown = "";

  constructor(element) {
    this.#element = element;
  }

  /** `take` or null; `heard` is what the listener hears of it (`{part, position}`) or null. */
  show(take, heard) {
    const state = take ? `${take.id} ${take.stoppedAt} ${key(take)} ${where(heard)}` : "";
    if (state === this.#shown) return;
    this.#shown = state;
    this.#element.hidden = !take;
    this.#element.replaceChildren(...(take ? take.parts.map((part) => this.#render(part, take, heard)) : []));
    this.#follow();
  }

  #render(part, take, heard) {
    const element = document.createElement("span");
    if (heard?.part !== part) {
      element.textContent = part.text;
      element.className = tense(part, take, heard);
      return element;
    }
    const { from, to } = nowIn(part, heard.position);
    const now = document.createElement("mark");
    now.className = "now";
    now.textContent = part.text.slice(from, to);
    const before = document.createElement("span");
    before.className = "past";
    before.textContent = part.text.slice(0, from);
    element.append(before, now, part.text.slice(to));
    return element;
  }

  #follow() {
    const now = this.#element.querySelector(".now") ?? this.#element.lastElementChild;
    if (!now) return;
    const { offsetTop, offsetHeight } = now;
    const top = this.#element.offsetTop;
    this.#element.scrollTop = offsetTop - top - (this.#element.clientHeight - offsetHeight) / 2;
  }
}

const key = (take) => take.parts.map((part) => `${part.text.length}${part.state}${part.playback ? "p" : ""}`).join();

const where = (heard) => (heard ? `${heard.part.id}/${sentenceAt(heard.part, heard.position)}` : "");

function tense(part, take, heard) {
  if (take.stoppedAt !== null) return part.offset === null || part.offset > take.stoppedAt ? "unspoken" : "past";
  const heardUpTo = heard ? take.parts.indexOf(heard.part) : -1;
  return part.playback || take.parts.indexOf(part) < heardUpTo ? "past" : "coming";
}

function sentenceAt(part, position) {
  return part.sentences.findLastIndex(({ firstSample }) => firstSample <= position);
}

/** The stretch of the part's text that is spoken at `position`: a sentence, or all of it where the texts differ. */
function nowIn(part, position) {
  const places = locateSentences(
    part.text,
    part.sentences.map(({ text }) => text),
  );
  return places[sentenceAt(part, position)] ?? { from: 0, to: part.text.trimEnd().length };
}
