// What plays: waveform, playhead, times, buffer, underruns.

import { Waveform } from "./waveform.js";
import { clockTime, milliseconds } from "./words.js";

export class Monitor {
  #waveform;
  #fields;

  /** `fields` are the elements for `now`, `total`, `first`, `audible`, `buffer` and `underruns`. */
  constructor({ canvas, fields }) {
    this.#waveform = new Waveform(canvas);
    this.#fields = fields;
  }

  show(studio) {
    const heard = studio.heard();
    const take = heard?.take ?? studio.takes.findLast((candidate) => candidate.making) ?? studio.takes.at(-1) ?? null;
    const growing = take !== null && (take.making || studio.activity(take) === "live");
    this.#waveform.draw({ peaks: take?.peaks ?? null, playhead: heard?.frame ?? null, growing });
    this.#showClock(take, heard, growing);
    this.#showMeters(studio);
  }

  #showClock(take, heard, growing) {
    const seconds = heard ? heard.frame / take.sampleRate : 0;
    write(this.#fields.now, heard ? clockTime(seconds) : "");
    const total = take && take.samples > 0 ? clockTime(take.seconds) : "";
    write(this.#fields.total, growing && take.making && total ? `${total} and growing` : total);
  }

  #showMeters(studio) {
    const parts = studio.takes.flatMap((take) => take.parts);
    const latest = (name) => parts.findLast((part) => part[name] !== null)?.[name] ?? null;
    write(this.#fields.first, timeOrDash(latest("firstAudioMs")));
    write(this.#fields.audible, timeOrDash(latest("audibleMs")));
    const { player } = studio;
    const ahead = player ? player.status.buffered / player.sampleRate : 0;
    write(this.#fields.buffer, `${ahead.toFixed(1)} s`);
    write(this.#fields.underruns, String(studio.underruns));
    this.#fields.underruns.classList.toggle("alarm", studio.underruns > 0);
  }
}

const timeOrDash = (ms) => (ms === null ? "–" : milliseconds(ms));

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
