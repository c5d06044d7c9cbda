// The outline of growing audio: the loudest sample of every 20 ms, as a fraction of full scale.

const BUCKETS_PER_SECOND = 50;

export class Peaks {
  #values = new Float32Array(512);
  #filled = 0;

  constructor(sampleRate) {
    this.bucketFrames = Math.round(sampleRate / BUCKETS_PER_SECOND);
    this.samples = 0;
    this.loudest = 0;
  }

  /** How many buckets hold audio; the last one may still be growing. */
  get length() {
    return this.#filled;
  }

  append(samples) {
    for (const sample of samples) {
      const bucket = Math.floor(this.samples++ / this.bucketFrames);
      if (bucket === this.#filled) this.#grow();
      const level = Math.abs(sample) / 32768;
      if (level > this.#values[bucket]) this.#values[bucket] = level;
      if (level > this.loudest) this.loudest = level;
    }
  }

  at(bucket) {
    return bucket >= 0 && bucket < this.#filled ? this.#values[bucket] : 0;
  }

  /** The outline in `count` equal steps over the whole length. */
  fit(count) {
    return Array.from({ length: count }, (_, step) => {
      const from = Math.floor((step * this.#filled) / count);
      const to = Math.max(from + 1, Math.floor(((step + 1) * this.#filled) / count));
      let loudest = 0;
      for (let bucket = from; bucket < to; bucket++) loudest = Math.max(loudest, this.at(bucket));
      return loudest;
    });
  }

  #grow() {
    this.#filled += 1;
    if (this.#filled <= this.#values.length) return;
    const larger = new Float32Array(this.#values.length * 2);
    larger.set(this.#values);
    this.#values = larger;
  }
}
