// The video page: a prompt that can be changed while its picture runs. `window.streamsynth` is for tests and the curious.

import { loadVideoModels } from "./catalogue.js";
import { KeyEntry } from "./key-entry.js";
import { Notices } from "./notices.js";
import { VideoEvents } from "./video-events.js";
import { VideoLink } from "./video-link.js";
import { VideoScreen } from "./video-screen.js";

const byId = (id) => document.getElementById(id);
const url = new URL("v1/realtime/video", location.href);
url.protocol = location.protocol === "https:" ? "wss:" : "ws:";

const RENDER_MS = 250;
const STATES = { idle: "Ready", starting: "Starting", running: "Running", ending: "Ending" };

const notices = new Notices(byId("notices"));
const screen = new VideoScreen(byId("screen"));
const events = new VideoEvents(byId("events"));
const keyEntry = new KeyEntry({
  onKey: () => setTimeout(load),
  onClose: () => byId("prompt").focus(),
});

let models = [];
let link = null;
let state = "idle";
let fps = 1;
let asked = 0;
let startedAt = 0;
let firstAt = null;
let shown = { pictures: 0, at: 0 };

function setState(next) {
  state = next;
  const running = state === "starting" || state === "running";
  byId("link-state").dataset.state = state === "starting" ? "connecting" : "open";
  byId("link-text").textContent = STATES[state];
  byId("send-text").textContent = running ? "Steer" : "Start";
  byId("stop").setAttribute("aria-disabled", String(!running));
  byId("empty").hidden = state !== "idle" || firstAt !== null;
  for (const id of ["model", "size"]) byId(id).disabled = state !== "idle";
}

const model = () => models.find(({ id }) => id === byId("model").value);

async function load() {
  try {
    models = await loadVideoModels(keyEntry.stored);
  } catch ({ error }) {
    if (error?.code === "unauthorized") keyEntry.ask();
    else notices.tell(error ?? { code: "unreachable" });
    return;
  }
  notices.hold("models", models.length ? null : "No model of this server makes video.");
  byId("model").replaceChildren(...models.map(({ id }) => new Option(id, id)));
  byId("model-field").hidden = models.length < 2;
  showSizes();
}

function showSizes() {
  const sizes = model()?.sizes ?? [];
  byId("size").replaceChildren(...sizes.map(({ width, height }) => new Option(`${width} × ${height}`, `${width}x${height}`)));
  byId("about").textContent = model()?.description ?? "";
  const transition = model()?.default_transition_chunks ?? 3;
  byId("transition").value = transition;
  showTransition();
}

function showTransition() {
  const chunks = Number(byId("transition").value);
  const seconds = model() ? ` (${((chunks * model().chunk_frames) / model().fps).toFixed(1)} s)` : "";
  byId("transition-value").textContent = chunks ? `${chunks} ${chunks === 1 ? "chunk" : "chunks"}${seconds}` : "a cut";
}

function send() {
  const prompt = byId("prompt").value.trim();
  if (!prompt) return;
  if (state === "running") steer(prompt);
  else if (state === "idle") start(prompt);
}

function steer(prompt) {
  asked += 1;
  const id = `page-${asked}`;
  events.add(id, prompt);
  link.steer({ event_id: id, event: { prompt }, transition_chunks: Number(byId("transition").value) });
}

function start(prompt) {
  if (!model()) return;
  if (!VideoScreen.supported) {
    notices.hold("unsupported", "This browser has no MediaSource, which showing live video needs.");
    return;
  }
  const [width, height] = byId("size").value.split("x").map(Number);
  const at = performance.now();
  byId("download").hidden = true;
  setState("starting");
  link = new VideoLink({
    url: url.href,
    key: keyEntry.stored,
    start: { model: model().id, prompt, width, height },
    // Until this video begins, the screen is at the one before.
    position: () => (state === "starting" ? null : screen.position),
    on: {
      start: (message) => begun(message, at),
      payload: take,
      queued: (id) => events.queued(id),
      applied: (id, seconds) => events.applied(id, seconds, Math.round(seconds * fps)),
      superseded: (id) => events.superseded(id),
      refused: (id, error) => events.refused(id, error),
      error: (error) => (error.code === "unauthorized" ? keyEntry.ask() : notices.tell(error)),
      end: ended,
    },
  });
}

/** What was there before goes only now: a start that is refused leaves the last video, and its download. */
function begun({ config }, at) {
  fps = config.fps;
  startedAt = at;
  firstAt = null;
  events.clear();
  setState("running");
  screen.begin(config.mime).catch((error) => {
    notices.tell({ code: "unsupported", message: error.message });
    link.abandon();
  });
  shown = { pictures: 0, at };
}

function take(metadata, data) {
  if (firstAt === null && metadata.num_frames) firstAt = performance.now();
  const last = metadata.pts / (metadata.timescale / fps) + metadata.num_frames - 1;
  for (const id of metadata.completed_event_ids) events.completed(id, last);
  screen.append(data);
}

function ended() {
  screen.end();
  byId("download").hidden = !screen.clip;
  setState("idle");
}

function stop() {
  if (state !== "starting" && state !== "running") return;
  setState("ending");
  link.stop();
}

function download() {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(screen.clip);
  anchor.download = "streamsynth.mp4";
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
}

function render() {
  const now = performance.now();
  const rate = (screen.pictures - shown.pictures) / ((now - shown.at) / 1000);
  if (now - shown.at >= 1000) {
    byId("meter-fps").textContent = state === "running" ? rate.toFixed(1) : "–";
    shown = { pictures: screen.pictures, at: now };
  }
  byId("meter-first").textContent = firstAt === null ? "–" : `${Math.round(firstAt - startedAt)} ms`;
  byId("meter-lead").textContent = `${screen.lead.toFixed(1)} s`;
  byId("meter-underruns").textContent = screen.underruns;
  if (screen.position !== null) events.seen(screen.position);
}

byId("steering").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", stop);
byId("download").addEventListener("click", download);
byId("model").addEventListener("change", showSizes);
byId("transition").addEventListener("input", showTransition);
addEventListener("pagehide", () => link?.abandon());
setInterval(render, RENDER_MS);
setState("idle");
load();

window.streamsynth = { screen, events };
