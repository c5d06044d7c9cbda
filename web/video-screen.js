// The picture: payloads of one video into a <video>, and what can be measured of its playing.

const KEPT_S = 30;
const DOWNLOAD_BYTES = 256 << 20;

export class VideoScreen {
  #video;
  #source = null;
  #buffer = null;
  #waiting = [];
  #parts = [];
  #bytes = 0;
  #ended = false;
  #url = null;
  #began = false;
  #played = false;
  #starving = false;

  underruns = 0;

  constructor(video) {
    this.#video = video;
    video.addEventListener("waiting", () => this.#starved());
    video.addEventListener("playing", () => {
      this.#played = true;
      this.#starving = false;
    });
  }

  static get supported() {
    return typeof MediaSource !== "undefined";
  }

  /** A new video of this MIME type; what was shown is gone. Rejects if the browser cannot decode it. */
  async begin(mime) {
    if (!MediaSource.isTypeSupported(mime)) throw new Error(`This browser cannot play ${mime}.`);
    this.clear();
    const source = (this.#source = new MediaSource());
    this.#url = URL.createObjectURL(source);
    this.#video.src = this.#url;
    await new Promise((resolve) => source.addEventListener("sourceopen", resolve, { once: true }));
    if (this.#source !== source) return;
    this.#buffer = source.addSourceBuffer(mime);
    this.#buffer.addEventListener("updateend", () => this.#next());
    this.#next();
  }

  /** Payloads in order, also before `begin` has finished. */
  append(data) {
    this.#bytes += data.byteLength;
    if (this.#bytes <= DOWNLOAD_BYTES) this.#parts.push(data);
    else this.#parts = [];
    this.#waiting.push(data);
    this.#next();
  }

  /** Nothing more will come. */
  end() {
    this.#ended = true;
    this.#next();
  }

  clear() {
    if (this.#url) URL.revokeObjectURL(this.#url);
    this.#source = this.#buffer = this.#url = null;
    this.#waiting = [];
    this.#parts = [];
    this.#bytes = this.underruns = 0;
    this.#ended = this.#began = this.#played = this.#starving = false;
  }

  /** Seconds of the video, or null before its first picture. */
  get position() {
    return this.#began ? this.#video.currentTime : null;
  }

  /** Seconds that are here and not yet seen. */
  get lead() {
    const { buffered, currentTime } = this.#video;
    return buffered.length ? Math.max(0, buffered.end(buffered.length - 1) - currentTime) : 0;
  }

  /** Pictures shown since the video began. */
  get pictures() {
    return this.#video.getVideoPlaybackQuality().totalVideoFrames;
  }

  /** The clip so far as a file, or null where it is too long to keep. */
  get clip() {
    return this.#parts.length ? new Blob(this.#parts, { type: "video/mp4" }) : null;
  }

  #next() {
    const buffer = this.#buffer;
    if (!buffer || buffer.updating || this.#source?.readyState !== "open") return;
    if (this.#began && this.#video.currentTime > 2 * KEPT_S && buffer.buffered.start(0) < this.#video.currentTime - 2 * KEPT_S) {
      buffer.remove(0, this.#video.currentTime - KEPT_S);
    } else if (this.#waiting.length) {
      buffer.appendBuffer(this.#waiting.shift());
    } else if (this.#ended) {
      this.#source.endOfStream();
    }
    if (!this.#began && buffer.buffered.length) {
      this.#began = true;
      this.#video.play().catch(() => {});
    }
  }

  #starved() {
    // Before it has played, it waits for its first pictures.
    if (!this.#played || this.#ended || this.#starving) return;
    this.#starving = true;
    this.underruns += 1;
  }
}
