"""Numbers in American English words, without the commas, hyphens and "and" that only readers need."""

from __future__ import annotations

from num2words import num2words

LONGEST_NUMBER = 15
"""Whole numbers of more digits are read digit by digit."""


def cardinal(number: int) -> str:
    return _plain(num2words(number))


def ordinal(number: int) -> str:
    return _plain(num2words(number, to="ordinal"))


def year(number: int) -> str:
    """1905: "nineteen oh five"; 2005: "two thousand five"."""
    return _plain(num2words(number, to="year"))


def digits(text: str) -> str:
    """Each digit of `text`; the rest of it is left out."""
    return " ".join(num2words(int(digit)) for digit in text if digit.isdigit())


def number(text: str) -> str:
    """A number as it is written in English: "1,250", "0.50", "-3", "007"."""
    if text.startswith("-"):
        return f"minus {number(text[1:])}"
    whole, _, fraction = text.replace(",", "").partition(".")
    if len(whole) > LONGEST_NUMBER or (len(whole) > 1 and whole[0] == "0"):
        words = digits(whole)
    else:
        words = cardinal(int(whole or 0))
    return f"{words} point {digits(fraction)}" if fraction else words


def is_one(text: str) -> bool:
    """Whether a noun behind this number is singular."""
    return text in ("1", "-1")


def _plain(words: str) -> str:
    return words.replace(",", "").replace(" and ", " ").replace("-", " ")
