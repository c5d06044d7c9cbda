// What was asked of a running video and what became of it, in the order of asking.

import { clockTime, inWords, milliseconds } from "./words.js";

const WORDS = {
  sent: "Sent",
  queued: "Queued",
  applied: "Applied",
  completed: "Done",
  superseded: "Replaced",
  refused: "Refused",
};

export class VideoEvents {
  #list;
  #events = new Map();

  constructor(list) {
    this.#list = list;
  }

  clear() {
    this.#events.clear();
    this.#list.replaceChildren();
  }

  /** A prompt was sent under this id. */
  add(id, prompt) {
    const element = document.createElement("li");
    element.className = "event";
    const words = document.createElement("p");
    words.className = "event-prompt";
    words.textContent = prompt;
    const facts = document.createElement("p");
    facts.className = "event-facts";
    element.append(words, facts);
    this.#list.prepend(element);
    const event = { element, facts, state: "", asked: performance.now(), appliedAt: null, notes: [] };
    this.#events.set(id, event);
    this.#set(event, "sent");
  }

  queued(id) {
    const event = this.#events.get(id);
    if (event?.state === "sent") this.#set(event, "queued", `acknowledged in ${milliseconds(performance.now() - event.asked)}`);
  }

  /** Its first picture is at this second of the video, frame `frame`. */
  applied(id, seconds, frame) {
    const event = this.#events.get(id);
    if (!event) return;
    event.appliedAt = seconds;
    const after = milliseconds(performance.now() - event.asked);
    this.#set(event, "applied", `from ${clockTime(seconds)}, picture ${frame}, ${after} after sending`);
  }

  completed(id, frame) {
    const event = this.#events.get(id);
    if (event) this.#set(event, "completed", `reached by picture ${frame}`);
  }

  superseded(id) {
    const event = this.#events.get(id);
    if (event && event.state !== "completed") this.#set(event, "superseded");
  }

  refused(id, error) {
    const event = this.#events.get(id);
    if (event) this.#set(event, "refused", inWords(error));
  }

  /** The playhead is here: those whose first picture it has reached are on the screen. */
  seen(seconds) {
    for (const event of this.#events.values()) {
      if (event.appliedAt === null || event.shown || seconds < event.appliedAt) continue;
      event.shown = true;
      this.#set(event, event.state, `seen ${milliseconds(performance.now() - event.asked)} after sending`);
    }
  }

  #set(event, state, note) {
    event.state = state;
    if (note) event.notes.push(note);
    event.element.dataset.state = state;
    event.facts.textContent = [WORDS[state], ...event.notes].join(" · ");
  }
}
