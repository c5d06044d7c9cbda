"""The talker's text: characters, phonemes, or both word by word, in one vocabulary of 128 ids.

A prompt is `<s>`, then a mode mark (`<ch>` or `<ph>`) before the first word and wherever the mode changes, then `</s>`.
"""

from __future__ import annotations

from collections.abc import Sequence

_SPECIALS = ("<pad>", "<s>", "</s>", "<ph>", "<ch>", "<null>", "<audio>", "<audio_eos>")
_SHARED = " ,.!?;:-'—"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PHONES = "AIOQSTWYᵊabdefhijklmnopstuvwzæðŋɑɐɒɔəɚɛɜɡɪɹɾʃʊʌʒʔʤʧˈˌːθᵻx"

PAD, BEGIN, END, PHONEMES, CHARACTERS, NOTHING = range(6)
TEXT_VOCABULARY_SIZE = 128

_CHARACTER_IDS = {c: i for i, c in enumerate(_SHARED + _LETTERS, len(_SPECIALS))}
_PHONEME_IDS = {c: _CHARACTER_IDS[c] for c in _SHARED if c not in "'-"}
_PHONEME_IDS |= {c: i for i, c in enumerate(_PHONES, len(_SPECIALS) + len(_CHARACTER_IDS))}

UNCONDITIONAL = (BEGIN, NOTHING, END)


def vocabulary() -> dict[str, object]:
    """As published in vocab.json."""
    return {
        "specials": {name: i for i, name in enumerate(_SPECIALS)},
        "chars": _CHARACTER_IDS,
        "phonemes": _PHONEME_IDS,
        "text_vocab_size": TEXT_VOCABULARY_SIZE,
    }


def character_prompt(text: str) -> list[int]:
    return [BEGIN, CHARACTERS, *_ids(text.lower(), _CHARACTER_IDS), END]


def phoneme_prompt(phonemes: str) -> list[int]:
    return [BEGIN, PHONEMES, *_ids(phonemes, _PHONEME_IDS), END]


def mixed_prompt(words: Sequence[str], pronunciations: Sequence[str], pronounced: Sequence[bool]) -> list[int]:
    """Each word spelled, or where `pronounced`, as its phonemes."""
    prompt, mode = [BEGIN], None
    for word, pronunciation, as_phonemes in zip(words, pronunciations, pronounced, strict=True):
        if mode is not None:
            prompt.append(_CHARACTER_IDS[" "])
        wanted = PHONEMES if as_phonemes else CHARACTERS
        if wanted != mode:
            prompt.append(wanted)
            mode = wanted
        prompt += _ids(pronunciation, _PHONEME_IDS) if as_phonemes else _ids(word.lower(), _CHARACTER_IDS)
    return [*prompt, END]


def is_pronounceable(phonemes: str) -> bool:
    return all(phoneme in _PHONEME_IDS for phoneme in phonemes)


def _ids(text: str, table: dict[str, int]) -> list[int]:
    return [table[c] for c in text if c in table]
