// One card of the gallery: a video that waits, is being made, is finished or has failed; or an image.

import { isFinished, isImage } from "./gallery-jobs.js";
import { inWords } from "./words.js";

const WORDS = { queued: "Waits for its turn", in_progress: "Being made", failed: "Failed" };
const SURE_MS = 4000;

export class Piece {
  #parts;
  #jobs;
  #on;
  #shown = null;
  #progress = null;
  #addresses = [];
  #asked = null;

  /** `on` gets `again(job)`, `gone(piece)` when it is deleted, `error(error)`. */
  constructor(template, job, jobs, on) {
    this.job = job;
    this.since = performance.now();
    this.#jobs = jobs;
    this.#on = on;
    this.element = template.content.firstElementChild.cloneNode(true);
    const part = (name) => this.element.querySelector(name);
    this.#parts = {
      view: part(".piece-view"),
      facts: part(".piece-facts"),
      again: part(".again"),
      download: part(".download"),
      delete: part(".delete"),
    };
    part(".piece-prompt").textContent = job.prompt;
    for (const name of ["again", "download", "delete"]) this.#name(name);
    this.#parts.again.addEventListener("click", () => on.again(this.job));
    this.#parts.download.addEventListener("click", () => this.#download());
    this.#parts.delete.addEventListener("click", () => this.#delete());
    this.update(job);
  }

  get isImage() {
    return isImage(this.job);
  }

  /** What the server says of it now. Whether it has just finished. */
  update(job) {
    const before = this.#shown;
    this.job = job;
    this.element.dataset.state = job.status;
    this.#parts.facts.textContent = this.#facts();
    this.#parts.download.hidden = job.status !== "completed";
    if (!isFinished(job)) this.#showProgress();
    else if (before !== job.status) this.#showEnd();
    this.#shown = job.status;
    return before !== null && before !== job.status && isFinished(job);
  }

  /** Forget what the browser holds of it. */
  drop() {
    clearTimeout(this.#asked);
    for (const address of this.#addresses) if (address.startsWith("blob:")) URL.revokeObjectURL(address);
    this.element.remove();
  }

  #name(name, words = this.#parts[name].title) {
    this.#parts[name].setAttribute("aria-label", `${words}: ${this.job.prompt}`);
  }

  #facts() {
    const { job } = this;
    if (job.status === "failed") return `${WORDS.failed}. ${inWords(job.error)}`;
    const length = this.isImage ? [] : [`${job.seconds} s`];
    const percent = job.status === "in_progress" && job.progress !== undefined ? ` ${job.progress} %` : "";
    const state = WORDS[job.status] ? [WORDS[job.status] + percent] : [];
    return [...state, job.size.replace("x", " × "), ...length, job.model, `seed ${job.seed}`].join(" · ");
  }

  #showProgress() {
    if (!this.#progress) {
      this.#progress = document.createElement("progress");
      this.#progress.max = 100;
      this.#progress.setAttribute("aria-label", `Progress of ${this.job.prompt}`);
      this.#parts.view.replaceChildren(this.#progress);
    }
    // Of an image nobody says how far it is.
    if (this.job.progress !== undefined) this.#progress.value = this.job.progress;
  }

  #showEnd() {
    this.#progress = null;
    if (this.job.status === "failed") this.#parts.view.replaceChildren();
    else if (this.isImage) this.#parts.view.replaceChildren(picture(this.#keep(this.job.address), this.job.prompt));
    else this.#showPoster();
  }

  #showPoster() {
    const play = document.createElement("button");
    play.type = "button";
    play.className = "piece-play";
    play.setAttribute("aria-label", `Play: ${this.job.prompt}`);
    play.innerHTML = '<svg aria-hidden="true"><use href="#icon-play"/></svg>';
    play.addEventListener("click", () => this.#play());
    this.#parts.view.replaceChildren(play);
    this.#attempt(async () => play.prepend(picture(this.#keep(await this.#jobs.thumbnail(this.job)), "")));
  }

  #play() {
    this.#attempt(async () => {
      const video = document.createElement("video");
      video.controls = video.playsInline = video.loop = video.autoplay = true;
      video.setAttribute("aria-label", this.job.prompt);
      video.src = this.#keep(await this.#jobs.file(this.job));
      this.#parts.view.replaceChildren(video);
      video.focus();
    });
  }

  #download() {
    this.#attempt(async () => {
      const anchor = document.createElement("a");
      anchor.href = this.#keep(await this.#jobs.file(this.job));
      anchor.download = `${this.job.id}.${this.isImage ? "png" : "mp4"}`;
      anchor.click();
    });
  }

  /** Of a finished one it asks first: what is deleted does not come back. */
  #delete() {
    if (this.#asked === null && this.job.status === "completed") {
      this.#name("delete", "Really delete");
      this.#parts.delete.dataset.sure = "";
      this.#asked = setTimeout(() => this.#keepIt(), SURE_MS);
      return;
    }
    this.#keepIt();
    this.#attempt(async () => {
      await this.#jobs.delete(this.job);
      this.#on.gone(this);
    });
  }

  #keepIt() {
    clearTimeout(this.#asked);
    this.#asked = null;
    this.#name("delete");
    delete this.#parts.delete.dataset.sure;
  }

  #keep(address) {
    this.#addresses.push(address);
    return address;
  }

  #attempt(work) {
    work().catch((refusal) => this.#on.error(refusal));
  }
}

function picture(address, words) {
  const image = document.createElement("img");
  image.src = address;
  image.alt = words;
  return image;
}
