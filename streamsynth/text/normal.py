"""Puts what is written in figures and short forms into the words that are spoken. English; a rule for each kind.

Takes a whole unit of the cutter, which never ends inside a number: so the words are the same however the text arrived.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from streamsynth.text.number_words import cardinal, digits, is_one, number, ordinal, year
from streamsynth.text.terms import (
    ABBREVIATIONS,
    BEFORE_NUMBER,
    CURRENCIES,
    FRACTIONS,
    MONTHS,
    MULTIPLES,
    NUMBERED,
    NUMBERED_NAMES,
    SIGNS,
    TITLES,
    UNITS,
)

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]

_QUOTES = str.maketrans({"’": "'", "‘": "'", "−": "-"})
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50}
_SPACES = re.compile(r"\s+")
_SPACE_BEFORE_MARK = re.compile(r"\s+(?=[,.;:!?])")


def normalise(text: str) -> str:
    """`text` on one line, without digits and signs; the period of a short form stays where it ends the text.

    Acronyms and words are left as they are.
    """
    text = _SPACES.sub(" ", text.translate(_QUOTES)).strip()
    for pattern, read in _RULES:
        text = pattern.sub(read, text)
    return _SPACE_BEFORE_MARK.sub("", _SPACES.sub(" ", text)).strip()


def _any_of(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _at_end(match: re.Match[str]) -> str:
    """The period of a short form that is also that of its sentence."""
    return "." if match[0].endswith(".") and match.end() == len(match.string) else ""


# Times and dates


def _time(match: re.Match[str]) -> str:
    hour, minute, second = int(match[1]), int(match[2]), match[3]
    if hour > 24 or minute > 59:
        return match[0]
    words = cardinal(hour)
    if minute:
        words += f" {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    elif not match[4] and not second:
        words += " o'clock"
    if second:
        words += f" and {cardinal(int(second))} {'second' if int(second) == 1 else 'seconds'}"
    return words + _half_day(match, 4)


def _hour(match: re.Match[str]) -> str:
    return cardinal(int(match[1])) + _half_day(match, 2)


def _half_day(match: re.Match[str], group: int) -> str:
    return f" {match[group].upper()}M{_at_end(match)}" if match[group] else ""


def _date(month: int, day: int, years: str | None) -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{MONTHS[month - 1]} {ordinal(day)}{f', {year(int(years))}' if years else ''}"


def _iso_date(match: re.Match[str]) -> str:
    return _date(int(match[2]), int(match[3]), match[1]) or match[0]


def _slashed_date(match: re.Match[str]) -> str:
    """Month first, as Americans write it, unless that cannot be."""
    first, second, years = int(match[1]), int(match[2]), match[3]
    month, day = (first, second) if first <= 12 else (second, first)
    century = "" if len(years) == 4 else "19" if int(years) > 40 else "20"
    return _date(month, day, century + years) or match[0]


def _month_day(match: re.Match[str]) -> str:
    return _date(_month(match[1]), int(match[2]), None) or match[0]


def _day_month(match: re.Match[str]) -> str:
    return f"the {ordinal(int(match[1]))} of {MONTHS[_month(match[2]) - 1]}{_at_end(match)}"


def _month(name: str) -> int:
    return [month[:3] for month in MONTHS].index(name[:3]) + 1


def _decade(match: re.Match[str]) -> str:
    words = cardinal(int(match[1])) if len(match[1]) < 4 else year(int(match[1]))
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


# Amounts


def _money(match: re.Match[str]) -> str:
    one, many, one_cent, many_cents = CURRENCIES[match["sign"] or match["behind"]]
    amount = match["amount"]
    if match["multiple"]:
        return f"{number(amount)} {MULTIPLES[match['multiple']]} {many}"
    whole, _, cents = amount.partition(".")
    if len(cents) != 2:
        return f"{number(amount)} {one if is_one(amount) else many}"
    parts = [f"{number(whole)} {one if is_one(whole) else many}"] if int(whole.replace(",", "") or 0) else []
    if int(cents) or not parts:
        parts.append(f"{cardinal(int(cents))} {one_cent if cents == '01' else many_cents}")
    return " and ".join(parts)


def _measure(match: re.Match[str]) -> str:
    one, many = UNITS[match["unit"]]
    power = {None: "", "²": "square ", "³": "cubic "}[match["power"]]
    amount = match["amount"]
    sign = "minus " if match["sign"] else ""
    return f"{sign}{number(amount)} {power}{one if is_one(amount) or match['gap'] == '-' else many}"


def _feet(match: re.Match[str]) -> str:
    inches = f" {cardinal(int(match[2]))}" if match[2] else ""
    return f"{cardinal(int(match[1]))} {'foot' if match[2] else 'feet'}{inches}"


def _fraction(match: re.Match[str]) -> str:
    whole, above, below = match[1], int(match[2]), int(match[3])
    if below in FRACTIONS and 0 < above < 10:
        name = FRACTIONS[below]
        words = f"{cardinal(above)} {name if above == 1 else 'halves' if below == 2 else f'{name}s'}"
    else:
        words = f"{cardinal(above)} over {cardinal(below)}"
    if not whole:
        return words
    return f"{number(whole)} and {'a half' if words == 'one half' else words}"


def _mixed(match: re.Match[str]) -> str:
    part = {"½": "a half", "¼": "a quarter", "¾": "three quarters"}[match[2]]
    return f"{number(match[1])} and {part}"


# Names of things


def _phone(match: re.Match[str]) -> str:
    groups = re.findall(r"\d+", match[0])
    plus = "plus " if match[0].startswith("+") else ""
    return plus + ", ".join(digits(group) for group in groups)


def _roman(numeral: str) -> int:
    values = [_ROMAN[letter] for letter in numeral]
    following = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, following, strict=True))


def _abbreviation(match: re.Match[str]) -> str:
    return ABBREVIATIONS[match[1]] + _at_end(match)


_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_MULTIPLE = rf"(?:\s?(?P<multiple>{_any_of(MULTIPLES)})\b)?"
_MONTH_NAMES = _any_of([*MONTHS, *(month[:3] for month in MONTHS), "Sept"])
_CURRENCY_SIGNS = _any_of(CURRENCIES)
_NUMERAL = r"(?=[IVXL])((?:XL|L?X{0,3})(?:IX|IV|V?I{0,3}))\b(?!['.]\w)"

_RULES: tuple[Rule, ...] = tuple(
    (re.compile(pattern), read)
    for pattern, read in (
        (r"\b24/7\b", lambda match: "twenty four seven"),
        (r"\b(\d{1,2}):(\d\d)(?::(\d\d))?(?:\s?([AaPp])\.?\s?[Mm]\b\.?)?(?!\d)", _time),
        (r"\b(\d{1,2})\s?([AaPp])\.?[Mm]\b\.?", _hour),
        (r"\b(\d{4})-(\d\d)-(\d\d)\b", _iso_date),
        (r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d\d)\b", _slashed_date),
        (rf"\b({_MONTH_NAMES})\b\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?![:%/]|[.,]\d)", _month_day),
        (rf"\b(?:[Tt]he )?(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?({_MONTH_NAMES})\b\.?", _day_month),
        (rf"(?<!\w)(?P<sign>{_CURRENCY_SIGNS})\s?(?P<amount>{_NUMBER}){_MULTIPLE}(?P<behind>)", _money),
        (rf"(?<![\w.])(?P<amount>{_NUMBER}){_MULTIPLE}\s?(?P<sign>)(?P<behind>{_CURRENCY_SIGNS})(?!\w)", _money),
        (r"(?<![\w.-])(?:\+?1[ -])?(?:\(\d{3}\) ?|\d{3}[ -])?\d{3}-\d{4}(?![\w-])", _phone),
        (r"(?<![\w.])(\d{1,2})'(?:\s?(\d{1,2})(?:\"|''))?(?!\w)", _feet),
        (r"(?<![\d.,])'?(\d{1,3}0)s\b", _decade),
        (
            rf"(?<![\w.])(?P<sign>-)?(?P<amount>{_NUMBER})(?P<gap>[\s-]?)(?P<unit>{_any_of(UNITS)})(?P<power>[²³])?"
            r"(?:\.(?= [a-z])|(?![\w/']))",
            _measure,
        ),
        (r"(?<![\d.,])(\d+(?:,\d{3})*)(?:st|nd|rd|th)\b", lambda match: ordinal(int(match[1].replace(",", "")))),
        (r"(?<![\w./])(?:(\d+) )?(\d{1,2})/(\d{1,3})(?![\w./])", _fraction),
        (r"(?<![\w.])(\d+) ?([½¼¾])", _mixed),
        (r"(?<=\d)(?:-| ?– ?)(?=\d)", lambda match: " to "),
        (r"(?<=\d) - (?=\d)", lambda match: " minus "),
        (r"(?<=\d):(?=\d)", lambda match: " to "),
        (rf"\b({_any_of(BEFORE_NUMBER)})\. ?(?=\d)", lambda match: f"{BEFORE_NUMBER[match[1]]} "),
        (r"\b([A-GJ])#", lambda match: f"{match[1]} sharp"),
        (r"#(?=\d)", lambda match: "number "),
        (rf"\b({_any_of(NUMBERED)}) {_NUMERAL}", lambda match: f"{match[1]} {cardinal(_roman(match[2]))}"),
        (rf"\b({_any_of(NUMBERED_NAMES)}) {_NUMERAL}", lambda match: f"{match[1]} the {ordinal(_roman(match[2]))}"),
        (rf"\b({_any_of(TITLES)})\.? (?=[A-Z])", lambda match: f"{TITLES[match[1]]} "),
        (rf"(?<![\w.])({_any_of(ABBREVIATIONS)})\.(?!\w)", _abbreviation),
        (r"(?<!\w)vs(?!\w)", lambda match: "versus"),
        (r"(?<![\w.,])(1[1-9]\d\d|20\d\d)(?![\d%]|[.,]\d)", lambda match: year(int(match[1]))),
        (r"\b(\d+)x(?!\w)", lambda match: f"{number(match[1])} times"),
        (r"(?<![\w)])-(?=\d)", lambda match: "minus "),
        (r"(?<=[A-Za-z])-?(?=\d)|(?<=\d)-?(?=[A-Za-z])", lambda match: " "),
        (_NUMBER, lambda match: f" {number(match[0])} "),
        (rf"[{re.escape(''.join(sign for sign in SIGNS))}]", lambda match: f" {SIGNS[match[0]]} "),
    )
)
