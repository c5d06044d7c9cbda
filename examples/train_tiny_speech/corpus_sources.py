"""Public English text: where it comes from (Debian and PyPI packages) and how it is read.

- WordNet 3.0 glosses (`wordnet-base`, WordNet licence, copyright 2006 Princeton University)
- Jane Austen's novels (`r-cran-janeaustenr`) and The Devil's Dictionary (`dict-devil`), public domain
- chatterbot-corpus (PyPI, BSD)
- the pronunciation lexicons inside hibari-tts (Apache-2.0), for words that no text holds
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from train_tiny_speech.sentences import clean, finished, is_readable, sentences

DEBIAN_PACKAGES = ("wordnet-base", "r-cran-janeaustenr", "dict-devil")
_R_STRING = re.compile(rb"\x00\x04\x00\x09(....)", re.DOTALL)


def fetch(folder: Path) -> None:
    """Downloads and unpacks the packages; nothing is installed on the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *DEBIAN_PACKAGES], cwd=folder, check=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--target",
        str(folder / "pypi"),
        "chatterbot-corpus==1.3.3",
    ]
    subprocess.run(pip, check=True)


def wordnet_examples(folder: Path) -> Iterator[str]:
    for _, _, gloss in _wordnet(folder):
        for quotation in re.findall(r'"([^"]+)"', gloss):
            sentence = clean(quotation.split(" - ")[0])
            if is_readable(sentence):
                yield finished(sentence)


def wordnet_definitions(folder: Path) -> Iterator[str]:
    for part, lemma, gloss in _wordnet(folder):
        definition = clean(re.split(r';\s*"', gloss)[0])
        if not is_readable(definition) or re.search("[A-Z]", definition):
            continue
        sentence = f"To {lemma} means to {definition}" if part == "verb" else f"{lemma}, {definition}"
        yield finished(sentence if is_readable(f"{lemma} is said") else definition)


def novels(folder: Path) -> Iterator[str]:
    data = (folder / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    for block in _r_blocks(data):
        lines = [block[m.end() : m.end() + int.from_bytes(m[1])].decode() for m in _R_STRING.finditer(block)]
        for paragraph in " ".join(line if line.strip() else "\n\n" for line in lines).split("\n\n"):
            yield from sentences(paragraph)


def devils_dictionary(folder: Path) -> Iterator[str]:
    with gzip.open(folder / "usr/share/dictd/devil.dict.dz", "rt", encoding="utf8", errors="replace") as book:
        for entry in book.read().split("\n\n"):
            yield from sentences(entry)


def small_talk(folder: Path) -> Iterator[str]:
    for file in sorted((folder / "pypi/chatterbot_corpus/data/english").glob("*.yml")):
        for line in re.findall(r"^\s*-\s*-?\s*(.+)$", file.read_text(encoding="utf8"), re.MULTILINE):
            yield from sentences(line.strip("'\" "))


def lexicon_words(*qualities: str) -> list[str]:
    """Every word and name that the teacher has a pronunciation for, as it is spelled; "gold" ones are curated."""
    import hibari

    assets = Path(hibari.__file__).parent / "assets"
    words: set[str] = set()
    for quality in qualities or ("gold", "silver"):
        with gzip.open(assets / f"lexicon_us_{quality}.json.gz", "rt", encoding="utf8") as lexicon:
            words.update(json.load(lexicon))
    return sorted(w for w in words if re.fullmatch(r"[A-Za-z]?[a-z]{2,13}('s)?", w))


def _wordnet(folder: Path) -> Iterator[tuple[str, str, str]]:
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"usr/share/wordnet/data.{part}").read_text(encoding="latin1").splitlines():
            if not line.startswith("  "):
                head, _, gloss = line.partition(" | ")
                yield part, head.split()[4].replace("_", " "), gloss


def _r_blocks(data: bytes) -> Iterator[bytes]:
    """Each object of an R lazy-load file: a big-endian length, then a zlib stream."""
    position = 0
    while position < len(data):
        stream = zlib.decompressobj()
        yield stream.decompress(data[position + 4 :])
        position = len(data) - len(stream.unused_data)
