"""Tokens to text while they come: no piece ends inside a character, and the pieces joined are the text of the whole."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from streamsynth.errors import ErrorCode, StreamSynthError

_METASPACE = "\u2581"


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read `tokenizer.json`; blocking. Raises START_FAILED if there is none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise StreamSynthError(ErrorCode.START_FAILED, f"{folder}: no tokenizer.json")
    return Tokenizer.from_file(str(path))


class TokenBytes:
    """The bytes that tokens stand for; a special token stands for none. Shared by all requests of a model.

    Knows byte-level tokenizers (Llama 3, Qwen) and those of SentencePiece's kind with byte fallback (Llama 2); raises
    START_FAILED for another decoder. `stripped` leading spaces of a text are not part of it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        layout = json.loads(tokenizer.to_str())
        decoder = layout["decoder"] or {}
        kinds = [part["type"] for part in decoder.get("decoders", [decoder]) if part]
        if kinds == ["ByteLevel"]:
            self._alphabet: dict[str, int] | None = _byte_level_alphabet()
            self.stripped = 0
        elif kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and kinds[3:] in ([], ["Strip"]):
            self._alphabet = None
            self.stripped = _strip_start(decoder["decoders"])
        else:
            raise StreamSynthError(ErrorCode.START_FAILED, f"tokenizer.json: the decoder {kinds} is not known here")
        self._tokenizer = tokenizer
        self._special = {token["id"] for token in layout["added_tokens"] if token["special"]}
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        """A token beyond the vocabulary, as padded embeddings allow, stands for no bytes."""
        found = self._known.get(token)
        if found is None:
            name = None if token in self._special else self._tokenizer.id_to_token(token)
            found = self._known[token] = b"" if name is None else self._bytes(name)
        return found

    def _bytes(self, name: str) -> bytes:
        if self._alphabet is not None:
            if all(character in self._alphabet for character in name):
                return bytes(self._alphabet[character] for character in name)
            return name.encode()
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes.fromhex(name[3:5])
        return name.replace(_METASPACE, " ").encode()


class Detokeniser:
    """One request's text. Bytes that are no UTF-8 become U+FFFD, as in a decoder of the whole."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._to_strip = tokens.stripped

    def push(self, token: int) -> str:
        """The characters that are complete with this token."""
        return self._strip(self._decoder.decode(self._tokens[token]))

    def finish(self) -> str:
        """What is left of a character that will not be completed."""
        return self._strip(self._decoder.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        while self._to_strip and text:
            if not text.startswith(" "):
                self._to_strip = 0
            else:
                text = text[1:]
                self._to_strip -= 1
        return text


class StopStrings:
    """Passes text on up to the first of some strings, and holds back what could be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """What can be passed on; after a stop string was `found`, nothing more."""
        if self.found:
            return ""
        text = self._held + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back and has turned out to be text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that begins a stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


def _strip_start(decoders: Sequence[dict[str, Any]]) -> int:
    return sum(part["start"] for part in decoders if part["type"] == "Strip" and part["content"] == " ")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}
