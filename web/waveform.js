// Draws audio as bars: what was heard, the playhead, what is ready to play.

const BAR_PX = 2;
const PITCH_PX = 4;
const PLAYHEAD_AT = 0.35;
const LOWEST_BAR_PX = 1.5;
const FULL_HEIGHT_FROM = 0.2;

/** The large view. While a take grows it scrolls past a fixed playhead; a whole one is fitted to the width. */
export class Waveform {
  #canvas;
  #context;
  #colours;
  #reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

  constructor(canvas) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d");
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (this.#colours = null));
  }

  /** `peaks` of a take or null, `playhead` in frames of it or null, `growing` while more audio is to come. */
  draw({ peaks, playhead, growing }) {
    this.#colours ??= coloursOf(this.#canvas);
    const { width, height } = fitToDisplay(this.#canvas, this.#context);
    const count = Math.floor(width / PITCH_PX);
    const at = playhead === null || !peaks ? null : playhead / peaks.bucketFrames;
    const shown = growing ? this.#window(peaks, at ?? peaks.length, count) : whole(peaks, at, count);
    this.#paint(shown, scaleOf(peaks), width, height);
  }

  /** A stretch of `count` buckets: the audio moves past the playhead, or with reduced motion the other way round. */
  #window(peaks, at, count) {
    const held = Math.floor(count * PLAYHEAD_AT);
    const first = this.#reducedMotion.matches ? Math.floor(at / count) * count : at - held;
    const bucket = Math.floor(first);
    const bars = Array.from({ length: count + 1 }, (_, n) => peaks.at(bucket + n));
    return { bars, shift: first - bucket, head: at - first, heard: at - bucket };
  }

  #paint({ bars, shift, head, heard }, scale, width, height) {
    const context = this.#context;
    context.clearRect(0, 0, width, height);
    const split = Math.min(bars.length, Math.max(0, Math.ceil(heard)));
    const place = (n) => (n - shift) * PITCH_PX;
    const paint = (some, colour, from) => paintBars(context, some, colour, (n) => place(n + from), { scale, height });
    paint(bars.slice(0, split), this.#colours.heard, 0);
    paint(bars.slice(split), this.#colours.ahead, split);
    if (head === null) return;
    context.fillStyle = this.#colours.playhead;
    context.fillRect(Math.round(head * PITCH_PX) - 1, 0, 2, height);
  }
}

/** A small outline of a whole take. */
export function drawOutline(canvas, peaks) {
  const context = canvas.getContext("2d");
  const { width, height } = fitToDisplay(canvas, context);
  const colours = coloursOf(canvas);
  context.clearRect(0, 0, width, height);
  const bars = peaks.fit(Math.floor(width / PITCH_PX));
  paintBars(context, bars, colours.ahead, (n) => n * PITCH_PX, { scale: scaleOf(peaks), height });
}

function whole(peaks, at, count) {
  if (!peaks || peaks.length === 0) return { bars: Array(count).fill(0), shift: 0, head: null, heard: 0 };
  const head = at === null ? null : (at / peaks.length) * count;
  return { bars: peaks.fit(count), shift: 0, head, heard: head ?? count };
}

/** The loudest bar fills the height, unless all of it is quiet. */
const scaleOf = (peaks) => 1 / Math.max(FULL_HEIGHT_FROM, peaks?.loudest ?? 1);

/** One path for all bars: painted sixty times a second beside the audio, on machines without a GPU too. */
function paintBars(context, bars, colour, place, { scale, height }) {
  context.fillStyle = colour;
  context.beginPath();
  bars.forEach((level, n) => {
    const tall = Math.max(LOWEST_BAR_PX, (level * scale) ** 0.8 * height);
    context.rect(place(n), (height - tall) / 2, BAR_PX, tall);
  });
  context.fill();
}

function fitToDisplay(canvas, context) {
  const ratio = globalThis.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  const [pixelWidth, pixelHeight] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixelWidth || canvas.height !== pixelHeight) {
    canvas.width = pixelWidth;
    canvas.height = pixelHeight;
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { width, height };
}

function coloursOf(element) {
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(name).trim();
  return { heard: colour("--accent"), ahead: colour("--ahead"), playhead: colour("--ink") };
}
