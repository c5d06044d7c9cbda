// Where a text that is still being typed may be handed over: after a finished sentence, not inside "Dr. Smith".

// What ends a sentence and what closes it, followed by the space that shows that the typist has moved on. The look-behind
// makes a run of marks match from its beginning only, so that a long one costs no more than its length.
const FINISHED = /(?<![.!?…])[.!?…]+["'”’)\]]*\s+|[。！？]+["'”’」』）]*\s*|\n\s*\n\s*/gu;
const ENDED = /([.!?…]["'”’)\]]*|[。！？]["'”’」』）]*)\s*$/u;
const ELLIPSIS = /^(…|\.\.)/;
const LAST_WORD = /\S*$/;
const LONGEST_ABBREVIATION = 8;
const OPENING = /^["'“‘([]+/u;
const INITIALS = /^(?:\p{L}\.)*\p{L}$/u;
const ORDINAL = /^\d{1,3}$/;
const ABBREVIATIONS = new Set(
  "mr mrs ms dr prof st jr sr vs etc no nr fig approx inc ltd mt gen col sgt capt lt rev hon cf bzw usw ca".split(" "),
);

/**
 * Splits `text` into the sentences that are finished and the rest that is still being written.
 * `finished + rest` is the text, byte for byte.
 */
export function splitFinished(text) {
  let cut = 0;
  for (const { 0: end, index } of text.matchAll(FINISHED)) {
    if (!ELLIPSIS.test(end) && !(end.startsWith(".") && followsAbbreviation(text, index))) cut = index + end.length;
  }
  return { finished: text.slice(0, cut), rest: text.slice(cut) };
}

function followsAbbreviation(text, index) {
  const [last] = text.slice(Math.max(0, index - LONGEST_ABBREVIATION), index).match(LAST_WORD);
  const word = last.replace(OPENING, "");
  return ABBREVIATIONS.has(word.toLowerCase()) || INITIALS.test(word) || ORDINAL.test(word);
}

/** Whether the text could stop here: used once the typist pauses. */
export function endsSentence(text) {
  return ENDED.test(text);
}

/** Cuts a text into messages of at most `limit` UTF-16 units, never through a surrogate pair. */
export function messagesOf(text, limit = 16_384) {
  const messages = [];
  for (let at = 0; at < text.length;) {
    let end = Math.min(at + limit, text.length);
    if (end < text.length && isHighSurrogate(text.charCodeAt(end - 1))) end -= 1;
    messages.push(text.slice(at, end));
    at = end;
  }
  return messages;
}

/** Where each of `sentences` lies in `text`, in order: `{from, to}`, or null if it is written differently. */
export function locateSentences(text, sentences) {
  let at = 0;
  return sentences.map((sentence) => {
    const wanted = (sentence ?? "").trim();
    const from = wanted ? text.indexOf(wanted, at) : -1;
    if (from < 0) return null;
    at = from + wanted.length;
    return { from, to: at };
  });
}

const isHighSurrogate = (unit) => unit >= 0xd800 && unit <= 0xdbff;
