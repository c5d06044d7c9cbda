// The server's videos and images as the page knows them, without a DOM.

import { ask } from "./http.js";

const PAGE = 100;
const VIDEOS = "/v1/videos";

export const isFinished = (job) => job.status === "completed" || job.status === "failed";

/** Images are no jobs of the server's: they are this page's alone. */
export const isImage = (job) => job.id.startsWith("image-");

export class Jobs {
  #key;
  #images = 0;
  #making = new Map();

  /** `key()` is the server's key, or null. All methods throw `Refusal`. */
  constructor(key) {
    this.#key = key;
  }

  /** `{jobs, more}`: the newest, or those older than the one named `after`. */
  async list(after = null) {
    const query = new URLSearchParams({ limit: PAGE, ...(after && { after }) });
    const { data, has_more: more } = await this.#json(`${VIDEOS}?${query}`);
    return { jobs: data, more };
  }

  create(fields) {
    return this.#json(VIDEOS, { method: "POST", body: fields });
  }

  /** An image as a job that is being made; `finished` is the same with its `address`, or with its `error`. */
  createImage(fields) {
    this.#images += 1;
    const job = { seed: "any", ...fields, id: `image-${this.#images}`, status: "in_progress" };
    const abort = new AbortController();
    this.#making.set(job.id, abort);
    const finished = this.#image(fields, abort.signal)
      .then((made) => ({ ...job, ...made, status: "completed" }))
      .catch((refusal) => ({ ...job, status: "failed", error: refusal.error ?? { code: "cancelled" } }))
      .finally(() => this.#making.delete(job.id));
    return { job, finished };
  }

  /** The end of its work, if it is being made. One that another page has deleted is as good as deleted here. */
  async delete(job) {
    if (isImage(job)) {
      this.#making.get(job.id)?.abort();
      return;
    }
    try {
      await this.#json(`${VIDEOS}/${job.id}`, { method: "DELETE" });
    } catch (refusal) {
      if (refusal.error?.code !== "not_found") throw refusal;
    }
  }

  /** An address for its first picture. The caller revokes it. */
  async thumbnail(job) {
    return URL.createObjectURL(await this.#blob(`${VIDEOS}/${job.id}/content?variant=thumbnail`));
  }

  /** An address for its file: the server's, which is read as it plays; with a key, which no player sends, a copy here. */
  async file(job) {
    if (isImage(job)) return job.address;
    const address = `${VIDEOS}/${job.id}/content`;
    return this.#key() ? URL.createObjectURL(await this.#blob(address)) : address;
  }

  async #image(fields, signal) {
    const response = await ask("/v1/images/generations", { key: this.#key(), method: "POST", body: fields, signal });
    const { data, size } = await response.json();
    const bytes = Uint8Array.from(atob(data[0].b64_json), (character) => character.charCodeAt(0));
    const address = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
    return { size, seed: response.headers.get("X-Seed"), address };
  }

  async #json(path, options = {}) {
    return (await ask(path, { key: this.#key(), ...options })).json();
  }

  async #blob(path) {
    return (await ask(path, { key: this.#key() })).blob();
  }
}
