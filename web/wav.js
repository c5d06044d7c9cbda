// A finished recording as a wav file.

const HEADER_BYTES = 44;

/** The bytes of a mono 16-bit wav file with true sizes. */
export function wavBytes(samples, sampleRate) {
  const data = samples.length * 2;
  const bytes = new ArrayBuffer(HEADER_BYTES + data);
  const view = new DataView(bytes);
  const tag = (at, text) => [...text].forEach((letter, n) => view.setUint8(at + n, letter.charCodeAt(0)));
  tag(0, "RIFF");
  view.setUint32(4, HEADER_BYTES - 8 + data, true);
  tag(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, sampleRate, true);
  view.setUint32(28, sampleRate * 2, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  tag(36, "data");
  view.setUint32(40, data, true);
  samples.forEach((sample, n) => view.setInt16(HEADER_BYTES + 2 * n, sample, true));
  return bytes;
}

/** A file name that says what is in it: the first words of the text. */
export function wavName(text) {
  const words = text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return `${words.slice(0, 6).join("-").slice(0, 60) || "speech"}.wav`;
}
