// The gallery page: a prompt becomes a clip or an image, and everything that was made is there. `window.streamsynth` is for
// tests and the curious.

import { loadPictureModels } from "./catalogue.js";
import { Jobs, isFinished, isImage } from "./gallery-jobs.js";
import { Piece } from "./gallery-piece.js";
import { KeyEntry } from "./key-entry.js";
import { Notices } from "./notices.js";

const byId = (id) => document.getElementById(id);

const SOON_MS = 400;
const LATER_MS = 5000;
const STATES = { connecting: "Connecting", open: "Ready", waiting: "Not connected", locked: "Key needed" };

const notices = new Notices(byId("notices"));
const pieces = new Map();
const keyEntry = new KeyEntry({ onKey: () => setTimeout(load), onClose: () => byId("prompt").focus() });
const jobs = new Jobs(() => keyEntry.stored);

let models = [];
let timer = null;
let looking = false;

const kind = () => document.querySelector("input[name=kind]:checked").value;
const able = (what) => models.filter(({ makes }) => makes.includes(what));
const model = () => models.find(({ id }) => id === byId("model").value);

function setState(state) {
  byId("link-state").dataset.state = state;
  if (byId("link-text").textContent !== STATES[state]) byId("link-text").textContent = STATES[state];
}

function tell(refusal) {
  if (!refusal.error) throw refusal;
  if (refusal.error.code === "unauthorized") {
    setState("locked");
    keyEntry.ask();
  } else {
    notices.tell(refusal.error);
  }
}

async function load() {
  clearTimeout(timer);
  try {
    models = await loadPictureModels(keyEntry.stored);
  } catch (refusal) {
    setState("waiting");
    if (refusal.error?.code === "unreachable") timer = setTimeout(load, LATER_MS);
    else tell(refusal);
    return;
  }
  setState("open");
  notices.hold("models", models.length ? null : "No model of this server makes video or images.");
  for (const each of ["video", "image"]) byId(`kind-${each}`).hidden = !able(each).length;
  if (models.length && !able(kind()).length) document.querySelector(`input[name=kind]:not(:checked)`).checked = true;
  showModels();
  if (models.length) look();
}

function showModels() {
  byId("model").replaceChildren(...able(kind()).map(({ id }) => new Option(id, id)));
  byId("model-field").hidden = able(kind()).length < 2;
  byId("seconds-field").hidden = kind() !== "video";
  showSizes();
}

function showSizes() {
  const { sizes = [], fps = 1, limits = {}, default_frames: frames } = model() ?? {};
  byId("size").replaceChildren(...sizes.map(({ width, height }) => new Option(`${width} × ${height}`, `${width}x${height}`)));
  byId("steps-field").hidden = !model()?.max_steps;
  byId("steps").max = model()?.max_steps ?? "";
  const most = Math.floor((2 * limits.max_frames) / fps) / 2 || 1;
  byId("seconds").max = most;
  if (Number(byId("seconds").value) > most) byId("seconds").value = most;
  if (frames) byId("seconds").value = Math.round((2 * frames) / fps) / 2;
}

async function make() {
  const prompt = byId("prompt").value.trim();
  if (!prompt || !model()) return;
  const fields = { prompt, model: model().id, size: byId("size").value };
  const seed = byId("seed").value.trim();
  if (seed) fields.seed = seed;
  if (model().max_steps && byId("steps").value) fields.num_inference_steps = Number(byId("steps").value);
  try {
    if (kind() === "video") {
      show(await jobs.create({ ...fields, seconds: Number(byId("seconds").value) }));
      announce(`Begun: ${prompt}`);
      look();
    } else {
      const { job, finished } = jobs.createImage(fields);
      show(job);
      announce(`Begun: ${prompt}`);
      finished.then((made) => pieces.has(made.id) && show(made));
    }
  } catch (refusal) {
    tell(refusal);
  }
}

function again(job) {
  const image = isImage(job);
  document.querySelector(`input[name=kind][value=${image ? "image" : "video"}]`).checked = true;
  showModels();
  if (able(kind()).some(({ id }) => id === job.model)) byId("model").value = job.model;
  showSizes();
  byId("size").value = job.size;
  if (!image) byId("seconds").value = job.seconds;
  byId("seed").value = job.seed === "any" ? "" : job.seed;
  byId("prompt").value = job.prompt;
  byId("prompt").focus();
}

/** The card of a job, made or brought up to date; new ones stand in front. */
function show(job, older = false) {
  const known = pieces.get(job.id);
  if (known) {
    if (known.update(job)) announce(`${job.status === "failed" ? "Failed" : "Finished"}: ${job.prompt}`);
    return;
  }
  const piece = new Piece(byId("piece-template"), job, jobs, { again, gone, error: tell });
  pieces.set(job.id, piece);
  byId("gallery")[older ? "append" : "prepend"](piece.element);
  byId("empty").hidden = true;
}

function gone(piece) {
  const neighbour = piece.element.nextElementSibling ?? piece.element.previousElementSibling;
  announce(`Deleted: ${piece.job.prompt}`);
  forget(piece);
  (neighbour?.querySelector(".delete") ?? byId("prompt")).focus();
}

function forget(piece) {
  pieces.delete(piece.job.id);
  piece.drop();
  byId("empty").hidden = pieces.size > 0;
}

/** What the server has: soon again while something is being made, for others may make things too. */
async function look() {
  clearTimeout(timer);
  if (looking) return;
  looking = true;
  const began = performance.now();
  try {
    const { jobs: newest, more } = await jobs.list();
    setState("open");
    for (const job of newest.toReversed()) show(job);
    const last = newest.at(-1);
    for (const piece of [...pieces.values()]) {
      const covered = piece.since < began && (!more || piece.job.created_at > last.created_at);
      if (!piece.isImage && covered && !newest.some(({ id }) => id === piece.job.id)) forget(piece);
    }
    byId("more").hidden = !more || pieces.size > newest.length;
    byId("empty").hidden = pieces.size > 0;
  } catch (refusal) {
    if (refusal.error?.code === "unreachable") setState("waiting");
    else tell(refusal);
  } finally {
    looking = false;
  }
  const busy = [...pieces.values()].some((piece) => !isFinished(piece.job));
  timer = setTimeout(look, busy ? SOON_MS : LATER_MS);
}

async function showOlder() {
  try {
    const oldest = [...byId("gallery").children].at(-1);
    const piece = [...pieces.values()].find(({ element }) => element === oldest);
    const { jobs: older, more } = await jobs.list(piece.job.id);
    for (const job of older) show(job, true);
    byId("more").hidden = !more;
  } catch (refusal) {
    tell(refusal);
  }
}

function announce(text) {
  byId("announcement").textContent = text;
}

byId("making").addEventListener("submit", (event) => {
  event.preventDefault();
  make();
});
for (const input of document.querySelectorAll("input[name=kind]")) input.addEventListener("change", showModels);
byId("model").addEventListener("change", showSizes);
byId("more").addEventListener("click", showOlder);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (models.length) look();
  else if (byId("link-state").dataset.state === "waiting") load();
});
setState("connecting");
load();

window.streamsynth = { pieces };
