"""A small lexicon for reading characters: words that always sound the same, with their phonemes.

Read off the phonemized corpus, where the teacher's dictionaries, rules and tagger have read each word in sentences.
A word that the sentence decides about ("the", "live", "record") stays out: the talker reads those from the letters.
"""

from __future__ import annotations

import argparse
import gzip
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from train_tiny_speech.corpus_sources import lexicon_words
from train_tiny_speech.text_tokens import is_pronounceable, mixed_prompt

MARKS = ",.!?;:"
_WORD = re.compile(r"[a-z][a-z'-]*[a-z]")


def build(lines: Iterable[str], curated: Collection[str], *, agreement: float = 0.97) -> dict[str, str]:
    """From lines of a sentence, a tab and its phonemes: words that are always read the same way, or almost.

    One that is seen only once is taken if it is `curated`.
    """
    readings: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        sentence, _, phonemes = line.rstrip("\n").partition("\t")
        words, pronunciations = sentence.lower().split(" "), phonemes.split(" ")
        if len(words) == len(pronunciations):
            for word, pronunciation in zip(words, pronunciations, strict=True):
                readings[word.strip(MARKS)][pronunciation.strip(MARKS + "—")] += 1
    lexicon = {}
    for word, counts in sorted(readings.items()):
        ((reading, count),) = counts.most_common(1)
        settled = count >= agreement * counts.total() and (count > 1 or word in curated)
        if settled and _WORD.fullmatch(word) and reading and is_pronounceable(reading):
            lexicon[word] = reading
    return lexicon


def write_lexicon(path: Path, lexicon: dict[str, str]) -> None:
    """Lines of word, tab, phonemes, compressed; the same lexicon gives the same bytes."""
    lines = "".join(f"{word}\t{reading}\n" for word, reading in lexicon.items())
    path.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))


def read_lexicon(path: Path) -> dict[str, str]:
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    return dict(line.split("\t", 1) for line in lines)


def lexicon_prompt(text: str, lexicon: dict[str, str]) -> list[int]:
    """Each word of the lexicon as its phonemes, every other one spelled, as streamsynth reads characters."""
    words = [part for word in text.lower().split(" ") for part in _parts(word, lexicon)]
    readings = [_reading(word.strip(MARKS), lexicon) for word in words]
    pronunciations = [
        word.replace(word.strip(MARKS), reading) if reading else ""
        for word, reading in zip(words, readings, strict=True)
    ]
    return mixed_prompt(words, pronunciations, [reading is not None for reading in readings])


def _parts(word: str, lexicon: dict[str, str]) -> list[str]:
    """A compound that is not known falls into words if its first and last are."""
    parts = word.split("-")
    ends = (parts[0], parts[-1].strip(MARKS))
    split = _reading(word.strip(MARKS), lexicon) is None and all(_reading(end, lexicon) for end in ends)
    return parts if split else [word]


def _reading(word: str, lexicon: dict[str, str]) -> str | None:
    if word in lexicon or not word.endswith("'s") or word[:-2] not in lexicon:
        return lexicon.get(word)
    owner = lexicon[word[:-2]]
    return owner + ("ᵻz" if owner[-1] in "szʃʒʧʤ" else "s" if owner[-1] in "ptkfθ" else "z")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="file from phonemize_corpus")
    parser.add_argument("out", type=Path, help="file to write (.tsv.gz)")
    arguments = parser.parse_args()
    with arguments.corpus.open() as lines:
        lexicon = build(lines, set(lexicon_words("gold")))
    write_lexicon(arguments.out, lexicon)
    logging.info("%d words, %d bytes", len(lexicon), arguments.out.stat().st_size)


if __name__ == "__main__":
    main()
