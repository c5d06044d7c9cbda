// What the page has to say about itself: connection, problems, the key.

import { inWords } from "./words.js";

const STATES = {
  resting: "Ready",
  connecting: "Connecting",
  open: "Ready",
  waiting: "Not connected",
  locked: "Key needed",
};
const LASTING_MS = 12_000;

/** The word beside the name of the page. */
export function showLink(wire, { badge, text }) {
  const trying = wire.state === "connecting" && wire.error ? "waiting" : wire.state;
  const said = wire.state === "locked" && wire.error?.code === "forbidden" ? "Refused" : STATES[trying];
  if (badge.dataset.state !== trying) badge.dataset.state = trying;
  if (text.textContent !== said) text.textContent = said;
}

/** Notices under a name each: a standing one until it no longer holds, an event's for a while or until dismissed. */
export class Notices {
  #region;
  #shown = new Map();

  constructor(region) {
    this.#region = region;
  }

  /** Shows `text` while it is not null; `action` is `{label, run}`. */
  hold(name, text, action = null) {
    const shown = this.#shown.get(name);
    if (shown?.text === text) return;
    this.#remove(name);
    if (text) this.#add(name, text, action);
  }

  /** An error that happened; it goes by itself, since what it is about has passed. */
  tell(error) {
    const text = inWords(error);
    this.hold(text, text, { label: "Dismiss", run: () => this.#remove(text) });
    this.#shown.get(text).timer ??= setTimeout(() => this.#remove(text), LASTING_MS);
  }

  #add(name, text, action) {
    const element = document.createElement("div");
    element.className = "notice";
    const words = document.createElement("p");
    words.textContent = text;
    element.append(words);
    if (action) element.append(actionButton(action));
    this.#shown.set(name, { text, element });
    this.#region.append(element);
  }

  #remove(name) {
    clearTimeout(this.#shown.get(name)?.timer);
    this.#shown.get(name)?.element.remove();
    this.#shown.delete(name);
  }
}

function actionButton({ label, run }) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet small";
  button.textContent = label;
  button.addEventListener("click", run);
  return button;
}
