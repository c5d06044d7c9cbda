"""Adds each sentence's phonemes after a tab, so that `render_teacher` needs no dictionaries. See README.md."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from train_tiny_speech.render_teacher import Teacher


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="sentences, one a line")
    parser.add_argument("out", type=Path, help="file to write")
    arguments = parser.parse_args()
    teacher = Teacher()
    sentences = arguments.corpus.read_text().splitlines()
    with arguments.out.open("w") as out:
        out.writelines(f"{sentence}\t{teacher.phonemes(sentence)}\n" for sentence in sentences)
    logging.info("%d sentences", len(sentences))


if __name__ == "__main__":
    main()
