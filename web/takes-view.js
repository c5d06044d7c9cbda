// The list of takes, newest first: replay, take the text up again, download.

import { wavBytes, wavName } from "./wav.js";
import { drawOutline } from "./waveform.js";
import { duration, inWords, milliseconds } from "./words.js";

const NAME_CHARACTERS = 60;

/** `onReplay(take)`, `onAgain(take)` (speak its text anew), `onEdit(take)`; a row is rebuilt only when it changed. */
export class TakesView {
  #section;
  #list;
  #template;
  #actions;
  #rows = new Map();

  constructor({ section, list, template, ...actions }) {
    this.#section = section;
    this.#list = list;
    this.#template = template;
    this.#actions = actions;
  }

  /** `isPlaying(take)` says whether it sounds now, or is about to. */
  show(takes, isPlaying) {
    this.#section.hidden = takes.length === 0;
    for (const [take, row] of this.#rows) {
      if (takes.includes(take)) continue;
      row.element.remove();
      this.#rows.delete(take);
    }
    for (const take of takes) this.#update(this.#rows.get(take) ?? this.#add(take), take, isPlaying(take));
  }

  #add(take) {
    const element = this.#template.content.firstElementChild.cloneNode(true);
    const find = (selector) => element.querySelector(selector);
    const row = {
      element,
      replay: find(".replay"),
      edit: find(".edit"),
      download: find(".download"),
      text: find(".take-text"),
      facts: find(".take-facts"),
      outline: find(".take-outline"),
      shown: "",
    };
    row.replay.addEventListener("click", () => this.#replayOrStop(row, take));
    row.edit.addEventListener("click", () => this.#actions.onEdit(take));
    row.download.addEventListener("click", () => hasAudio(take) && download(take));
    this.#list.prepend(element);
    this.#rows.set(take, row);
    return row;
  }

  #replayOrStop(row, take) {
    if (row.playing) this.#actions.onStop();
    else if (hasAudio(take)) this.#actions.onReplay(take);
    else if (!take.making) this.#actions.onAgain(take);
  }

  #update(row, take, playing) {
    const shown = looksOf(take, playing);
    if (shown === row.shown) return;
    Object.assign(row, { shown, playing });
    const { facts, problem } = factsOf(take);
    row.text.textContent = take.text.trim();
    row.facts.textContent = facts;
    if (problem) row.facts.append(element("span", "problem", (facts ? " · " : "") + problem));
    const name = nameOf(take);
    const verb = playing ? "Stop" : hasAudio(take) ? "Replay" : "Speak again";
    label(row.replay, `${verb}: ${name}`, playing || hasAudio(take) || !take.making);
    row.replay.querySelector("use").setAttribute("href", playing ? "#icon-stop" : "#icon-play");
    label(row.edit, `Edit the text again: ${name}`, true);
    label(row.download, `Download as wav: ${name}`, hasAudio(take) && !take.making);
    drawOutline(row.outline, take.peaks);
  }
}

/** Everything that a row shows, in short: it is compared at every frame. */
function looksOf(take, playing) {
  const { parts, making, audioDropped, stoppedAt, firstAudioMs, audibleMs, underruns, error } = take;
  const outline = take.peaks.length >> 3;
  return [
    parts.length,
    outline,
    playing,
    making,
    audioDropped,
    stoppedAt,
    firstAudioMs,
    audibleMs,
    underruns,
    error?.code,
  ].join();
}

const hasAudio = (take) => take.samples > 0 && !take.audioDropped;

/** What is known of a take, shortest first. */
function factsOf(take) {
  const facts = [];
  if (take.samples > 0) facts.push(duration(take.seconds));
  if (take.firstAudioMs !== null) facts.push(`first audio ${milliseconds(take.firstAudioMs)}`);
  if (take.audibleMs !== null) facts.push(`audible ${milliseconds(take.audibleMs)}`);
  if (take.underruns > 0) facts.push(`${take.underruns} underruns`);
  if (take.stoppedAt !== null) facts.push(`stopped at ${duration(take.stoppedAt / take.sampleRate)}`);
  if (take.audioDropped) facts.push("audio no longer kept");
  if (facts.length === 0 && !take.making && !take.error) facts.push("nothing to say");
  if (facts.length === 0 && take.making) facts.push("waiting for the voice");
  return { facts: facts.join(" · "), problem: take.error ? inWords(take.error) : "" };
}

function nameOf(take) {
  const text = take.text.trim().replace(/\s+/g, " ");
  return text.length > NAME_CHARACTERS ? `${text.slice(0, NAME_CHARACTERS)}…` : text;
}

function label(button, text, enabled) {
  button.setAttribute("aria-label", text);
  button.setAttribute("aria-disabled", String(!enabled));
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function download(take) {
  const url = URL.createObjectURL(new Blob([wavBytes(take.recording(), take.sampleRate)], { type: "audio/wav" }));
  const link = element("a", "", "");
  link.href = url;
  link.download = wavName(take.text);
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
