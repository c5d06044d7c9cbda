"""Builds the training text: one spoken-form sentence a line, no digits. See README.md for the command."""

from __future__ import annotations

import argparse
import logging
import random
import re
from collections.abc import Iterator
from pathlib import Path

from train_tiny_speech import corpus_sources as sources
from train_tiny_speech.templates import assistant_sentence

_WORD_FRAMES = (
    "{}, {}, {}, and {}.",
    "The {} and the {} {}.",
    "{} {}, {} {}.",
    "How do you spell {}, or {}?",
    "She said {} and {}, not {}.",
    "A {} of {} is a {} {}.",
)


def assistant_sentences(count: int, rng: random.Random) -> Iterator[str]:
    for _ in range(count):
        yield assistant_sentence(rng)


def word_sentences(passes: int, rng: random.Random) -> Iterator[str]:
    """Each word of the lexicon `passes` times, in nonsense frames: spelling is learned from words, not from sense."""
    words = sources.lexicon_words()
    for _ in range(passes):
        rng.shuffle(words)
        rest = iter(words)
        while True:
            frame = rng.choice(_WORD_FRAMES)
            chosen = [word for word, _ in zip(rest, range(frame.count("{}")), strict=False)]
            if len(chosen) < frame.count("{}"):
                break
            sentence = frame.format(*chosen)
            yield sentence[0].upper() + sentence[1:]


def build(folder: Path, excluded: set[str], rng: random.Random) -> list[str]:
    """All sentences, shuffled, each once; `excluded` (held-out sentences, any spelling of them) never appears."""
    seen = {_key(sentence) for sentence in excluded}
    corpus: list[str] = []
    pools = {
        "examples": sources.wordnet_examples(folder),
        "definitions": sources.wordnet_definitions(folder),
        "novels": sources.novels(folder),
        "devil": sources.devils_dictionary(folder),
        "small talk": sources.small_talk(folder),
        "assistant": assistant_sentences(40_000, rng),
        "words": word_sentences(1, rng),
    }
    for name, pool in pools.items():
        before = len(corpus)
        for sentence in pool:
            key = _key(sentence)
            if key not in seen:
                seen.add(key)
                corpus.append(sentence)
        logging.info("%s: %d sentences", name, len(corpus) - before)
    rng.shuffle(corpus)
    return corpus


def _key(sentence: str) -> str:
    return re.sub("[^a-z ]", "", sentence.lower())


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--sources", type=Path, default=Path("out/sources"), help="folder for the downloaded packages")
    parser.add_argument("--exclude", type=Path, help="held-out sentences, one a line")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    if not (arguments.sources / "usr").exists():
        sources.fetch(arguments.sources)
    excluded = set(arguments.exclude.read_text().splitlines()) if arguments.exclude else set()
    corpus = build(arguments.sources, excluded, random.Random(arguments.seed))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text("\n".join(corpus) + "\n")
    logging.info("%d sentences, %d characters", len(corpus), sum(map(len, corpus)))


if __name__ == "__main__":
    main()
