// Joins the page's elements to the studio. `window.streamsynth` is the studio, for the curious and for tests.

import { Composer } from "./composer.js";
import { KeyEntry } from "./key-entry.js";
import { Monitor } from "./monitor.js";
import { Notices, showLink } from "./notices.js";
import { PlayerUnavailable } from "./player.js";
import { Said } from "./said.js";
import { SAMPLES } from "./samples.js";
import { Studio } from "./studio.js";
import { TakesView } from "./takes-view.js";
import { VoiceSettings } from "./voice-settings.js";
import { duration, inWords } from "./words.js";

const byId = (id) => document.getElementById(id);
const socketUrl = new URL("v1/audio/speech/stream", location.href);
socketUrl.protocol = location.protocol === "https:" ? "wss:" : "ws:";

const NO_SOUND = {
  insecure:
    "This page was opened over plain http from another machine. Browsers play streamed audio on https and localhost only: " +
    "start the server with --tls-cert and --tls-key, or open it through an SSH tunnel on localhost.",
  unsupported:
    "This browser has no AudioWorklet, which playing speech needs. A current Chrome, Firefox or Safari has it.",
};

const notices = new Notices(byId("notices"));
const studio = new Studio({ url: socketUrl.href, onChange: scheduleRender, onNotice: tell });
const said = new Said(byId("said"));
const monitor = new Monitor({
  canvas: byId("waveform"),
  fields: {
    now: byId("clock-now"),
    total: byId("clock-total"),
    first: byId("meter-first"),
    audible: byId("meter-audible"),
    buffer: byId("meter-buffer"),
    underruns: byId("meter-underruns"),
  },
});
const composer = new Composer({
  text: byId("text"),
  modes: document.querySelectorAll("input[name=mode]"),
  hint: byId("hint"),
  page: byId("page"),
  onText: async (text) => {
    if (!(await attempt(() => studio.speak(text)))) composer.giveBack(text);
  },
  onEnd: () => studio.endTake(),
  onTouch: () => attempt(() => studio.prepare()),
});
const takesView = new TakesView({
  section: byId("history"),
  list: byId("takes"),
  template: byId("take-template"),
  onReplay: (take) => attempt(() => studio.replay(take)),
  onStop: stop,
  onAgain: (take) => speakAlone(take.text),
  onEdit: (take) => composer.set(take.text),
});
const keyEntry = new KeyEntry({
  onKey: (key) => {
    studio.wire.unlock(key);
    loadSettings();
  },
  onClose: () => composer.focus(),
});
const settings = new VoiceSettings({
  elements: {
    model: byId("model"),
    modelField: byId("model-field"),
    voice: byId("voice"),
    speed: byId("speed"),
    speedValue: byId("speed-value"),
  },
  onChoice: (choice) => studio.configure(choice),
  onError: tell,
});

// Errors that the state of the connection shows for as long as they last.
const STANDING = new Set([
  "unauthorized",
  "forbidden",
  "unreachable",
  "connection_lost",
  "shutting_down",
  "overloaded",
]);

function tell(error) {
  if (!STANDING.has(error.code)) notices.tell(error);
}

/** Runs what may find that there is no sound here, and says so instead of failing; false if that happened. */
async function attempt(action) {
  try {
    await action();
    return true;
  } catch (error) {
    if (!(error instanceof PlayerUnavailable)) throw error;
    tellNoSound(error);
    return false;
  }
}

function tellNoSound({ reason, message }) {
  notices.hold("sound", NO_SOUND[reason] ?? message);
  composer.blocked = reason in NO_SOUND;
  scheduleRender();
}

function speakAlone(text) {
  studio.endTake();
  attempt(() => studio.speak(text));
  studio.endTake();
}

function stop() {
  if (studio.speaking) attempt(() => studio.stop());
}

async function loadSettings() {
  const characters = await settings.load(keyEntry.stored);
  if (characters) composer.limitTo(characters);
}

let scheduled = false;

function scheduleRender() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(render);
}

let wasSpeaking = false;
let latestHeard = null;
let countdown = null;
let askedForKeyOn = 0;

function render() {
  scheduled = false;
  const { speaking, wire } = studio;
  const heard = studio.heard();
  latestHeard = heard?.take ?? latestHeard;
  said.show(studio.current ?? heard?.take ?? studio.takes.at(-1) ?? null, heard?.part ? heard : null);
  monitor.show(studio);
  takesView.show(studio.takes, (take) => studio.activity(take) !== null);
  showLink(wire, { badge: byId("link-state"), text: byId("link-text") });
  showButtons(speaking);
  showStanding(wire);
  if (wasSpeaking && !speaking) announceEnd();
  wasSpeaking = speaking;
  if (speaking) scheduleRender();
}

function showButtons(speaking) {
  byId("stop").setAttribute("aria-disabled", String(!speaking));
  byId("speak").setAttribute("aria-disabled", String(!composer.ready));
  byId("samples").hidden = studio.takes.length > 0 || composer.value !== "";
}

/** Problems that last as long as their cause. */
function showStanding({ state, error, retryAt, connections }) {
  const refusedUntil = studio.retryAt ?? (error?.code === "overloaded" ? retryAt : null);
  notices.hold("full", refusedUntil && `The server is full. Trying again in ${secondsUntil(refusedUntil)} s.`);
  clearTimeout(countdown);
  if (refusedUntil) countdown = setTimeout(scheduleRender, 250);
  const away = state === "waiting" || (state === "connecting" && error);
  notices.hold("away", away && !refusedUntil ? `${inWords(error)} Trying again.` : null);
  const locked = state === "locked";
  if (locked && error.code === "unauthorized" && askedForKeyOn !== connections) {
    askedForKeyOn = connections;
    keyEntry.ask();
  }
  const unlock = error?.code === "unauthorized" ? { label: "Enter key", run: () => keyEntry.ask() } : null;
  notices.hold("locked", locked ? inWords(error) : null, unlock);
  const { excess } = composer;
  notices.hold("length", excess > 0 ? `The text is ${excess.toLocaleString("en")} characters too long.` : null);
}

const secondsUntil = (at) => Math.max(1, Math.ceil((at - performance.now()) / 1000));

function announceEnd() {
  const take = latestHeard;
  if (!take || take.error) return;
  const whole = take.stoppedAt === null;
  byId("announcement").textContent = whole ? `Finished, ${duration(take.seconds)}.` : "Stopped.";
}

byId("samples")
  .querySelector("ul")
  .append(
    ...SAMPLES.map(({ title, text }) => {
      const item = document.createElement("li");
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "sample", textContent: title });
      button.addEventListener("click", () => speakAlone(text));
      item.append(button);
      return item;
    }),
  );

byId("speak").addEventListener("click", ({ detail }) => {
  composer.speakAll();
  if (detail > 0 && matchMedia("(pointer: fine)").matches) composer.focus();
});
byId("stop").addEventListener("click", stop);
byId("text").addEventListener("input", scheduleRender);
document.addEventListener("pointerdown", () => attempt(() => studio.prepare()));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !keyEntry.open) stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) composer.speakAll();
});
document.addEventListener("visibilitychange", () => {
  studio.wire.setInUse(!document.hidden);
  if (document.hidden) studio.rest();
});
addEventListener("resize", scheduleRender);

window.streamsynth = studio;
if (keyEntry.stored) studio.wire.unlock(keyEntry.stored);
if (!globalThis.isSecureContext) tellNoSound({ reason: "insecure" });
studio.wire.setInUse(!document.hidden);
loadSettings();
if (matchMedia("(pointer: fine)").matches) composer.focus();
scheduleRender();
