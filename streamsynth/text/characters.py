"""Brings the many ways to write a character down to the few that a reader of Latin script knows.

What is left out here has no sound: formatting, controls, pictures and emoji. Letters without a plain form are left out
too: `scripts.foreign_word` finds them before.
"""

from __future__ import annotations

import re
import unicodedata

_NOT_PLAIN = re.compile(r"[^\x20-\x7e]")

_PUNCTUATION = str.maketrans(
    {
        "。": ". ",
        "｡": ". ",
        "、": ", ",
        "，": ", ",
        "！": "! ",
        "？": "? ",
        "；": "; ",
        "：": ": ",
        "؟": "?",
        "،": ",",
        "؛": ";",
        "‽": "?!",
        "⁈": "?!",
        "⁉": "!?",
        "「": "“",
        "」": "”",
        "『": "“",
        "』": "”",
        "«": "“",
        "»": "”",
        "‹": "“",
        "›": "”",
        "„": "“",
        "‟": "“",
        "‚": "‘",
        "‛": "‘",
        "′": "'",
        "″": '"',
        "ʼ": "'",
        "ʻ": "'",
        "´": "'",
        "‐": "-",
        "‑": "-",
        "‒": "-",
        "―": "—",
        "⸺": "—",
        "⁓": "-",
        "〜": "-",
        "⁄": "/",
        "∕": "/",
        "·": " ",
        **{chr(0x2080 + digit): str(digit) for digit in range(10)},
    }
)


def fold(text: str, keep: frozenset[str]) -> str:
    """`text` in printable ASCII and `keep` alone.

    Styled letters and digits become plain ones, accents that `keep` does not know are dropped, digits of any script
    become ASCII, foreign punctuation its ASCII kin. The rest becomes nothing, if it is invisible, or a space.
    """
    if text.isascii() and text.isprintable():
        return text
    text = unicodedata.normalize("NFC", text).translate(_PUNCTUATION)
    return _NOT_PLAIN.sub(lambda match: match[0] if match[0] in keep else _plain(match[0], keep), text)


def _plain(character: str, keep: frozenset[str]) -> str:
    category = unicodedata.category(character)
    if category in ("Cf", "Mn", "Me"):
        return ""
    if category == "Nd":
        return str(unicodedata.digit(character))
    if category[0] not in "LNPS" or (category == "So" and not _is_letterlike(character)):
        return " "
    folded = unicodedata.normalize("NFKC", character).replace("⁄", "/")
    if "/" in folded:
        return f" {folded} "
    kept = "".join(part if part in keep or " " <= part <= "~" else plain_letter(part) for part in folded)
    return f"{kept} " if category == "No" else kept or " "


def plain_letter(character: str) -> str:
    """A letter without its accents, if that is ASCII, else nothing."""
    base = unicodedata.normalize("NFD", character)[:1]
    return base if base.isascii() and base.isalnum() else ""


def _is_letterlike(character: str) -> bool:
    """Whether a symbol is a sign made of letters, such as the one for degrees Celsius."""
    return 0x2100 <= ord(character) < 0x2150
