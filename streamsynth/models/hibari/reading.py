"""Rewrites English text so that hibari's own reader says all of it, or refuses it by name.

Left to itself that reader skips what it does not know: "₽500" becomes "five hundred", "x ≤ 3" becomes "x three", a
Chinese word nothing, a Cyrillic one noise. "22,1" becomes "two hundred twenty one", and 40 digits are an exception.
"""

from __future__ import annotations

import re
import unicodedata

from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.text.characters import fold
from streamsynth.text.scripts import foreign_word, script_of

_KNOWN_LETTERS = frozenset(
    "ÀÁÂÃÄÅÆÇÉÊÌÍÎÏÑÒÓÔÕÖØÚÜÞßàáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿĀāĂăąĆćČčĎďĐđĒēĕĖėęěĝĞğġģīĭİıķļĽľŁłńņňŋŌōŏőŒœŘřŚśŞşŠšţťūŭŮů"
    "ŰųŵźŻżŽžƒơưǎǐǒǔǚșțəɛ"
)
_KNOWN_SIGNS = frozenset("“”‘’–—…°£€¥₹₩¢§¶±×÷™®©½¼¾²³µ")
_KEPT = _KNOWN_LETTERS | _KNOWN_SIGNS
_SCRIPTS = frozenset({"Latin"})

_SIGNS = {
    "−": " minus ",
    "≤": " less than or equal to ",
    "≥": " greater than or equal to ",
    "≠": " not equal to ",
    "≈": " approximately ",
    "≡": " identical to ",
    "∞": " infinity ",
    "√": " square root of ",
    "∛": " cube root of ",
    "∑": " sum of ",
    "∏": " product of ",
    "∫": " integral of ",
    "∂": " partial ",
    "∆": " delta ",
    "→": " to ",
    "↔": " to and from ",
    "⇒": " implies ",
    "∴": " therefore ",
    "∵": " because ",
    "‰": " per mille",
    "№": "number ",
    "⅋": " and ",
    "℃": " °C",
    "℉": " °F",
    "℮": " estimated ",
    "™": "",
    "®": "",
    "℠": "",
}
_CURRENCIES = {
    "₽": "rubles",
    "₿": "bitcoin",
    "₪": "shekels",
    "₫": "dong",
    "₴": "hryvnias",
    "₦": "naira",
    "₺": "lira",
    "₤": "lira",
    "฿": "baht",
    "₱": "pesos",
    "₲": "guaranis",
    "₵": "cedis",
    "₸": "tenge",
    "₡": "colones",
    "₭": "kip",
    "₮": "tugriks",
    "₼": "manats",
    "₾": "lari",
}
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")

_GREEK = re.compile(r"[\u0370-\u03ff\u1f00-\u1fff]+")
_POWER = re.compile(r"[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_OHMS = re.compile(r"(?<=\d)\s?([kM]?)Ω")
_MICRO = re.compile(r"(?<=\d)(\s?)μ(?=[a-zA-Z])")
_MONEY = re.compile(rf"([{''.join(_CURRENCIES)}])\s?(\d[\d,.]*\d|\d)")
_MONEY_SIGN = re.compile(f"[{''.join(_CURRENCIES)}]")

_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_BULLET = re.compile(r"^\s*(?:#{1,6}|[-*•>+])\s+(?=\S)")
_EMOTICON = re.compile(r"(?<!\S)(?:[:;=][-'^]?[()DPpOo|/\\\[\]*3]+|[xX]D+|<3+|\^_+\^)(?=[\s.,!?]|$)")
_ADDRESS = re.compile(
    r"(?<![\w@])(?:(?:https?|ftp)://|www\.)[^\s<>\"“”]*[\w/]|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?<![\w@.])(?:[A-Za-z][\w-]*\.)+(?:com|org|net|edu|gov|io|co|uk|de|fr|info|dev|ai)(?:/[^\s<>\"“”]*[\w/])?(?![\w.]*\w)"
)
_DOTTED_NUMBER = re.compile(r"(?<![\d.,])\d+(?:\.\d+){2,}(?![\d,]|\.\d)")
_COMMA_NUMBER = re.compile(r"(?<![\d.,])\d+(?:,\d+)+(?:\.\d+)?(?![\d,]|\.\d)")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BARE_FRACTION = re.compile(r"(?<![\w.])\.(?=\d)")
_LEADING_ZEROS = re.compile(r"(?<![\w.,:/-])0\d+(?![\w:/-]|[.,]\d)")
_LONG_NUMBER = re.compile(r"(?<![\d.])\d[\d,]{14,}")
_LONE_DOLLAR = re.compile(r"\$(?!\s?\.?\d)")
_LONG_RUN = re.compile(r"\S{41,}")
_RUN_PART = re.compile(r"\S{1,20}")
_ABOUT = re.compile(r"~(?=\s?\d)")

_ADDRESS_WORDS = {
    ".": " dot ",
    "/": " slash ",
    ":": " colon ",
    "@": " at ",
    "?": " question mark ",
    "=": " equals ",
    "&": " and ",
    "-": " dash ",
    "_": " underscore ",
    "#": " hash ",
    "%": " percent ",
    "+": " plus ",
    "~": " tilde ",
}
_ADDRESS_SIGN = re.compile(r"[^A-Za-z0-9]")


def refuse_foreign(text: str) -> None:
    """Raise UNSUPPORTED_LANGUAGE, naming word and script, if `text` has a word that the voice cannot say."""
    if text.isascii():
        return
    for match in _GREEK.finditer(text):
        if len(match[0]) > 1:
            raise _unsupported(match[0], "Greek")
    foreign = foreign_word(_MONEY.sub("", _GREEK.sub("", text)), _SCRIPTS, _KNOWN_LETTERS)
    if foreign is not None:
        raise _unsupported(foreign.word, foreign.script)


def _unsupported(word: str, script: str) -> StreamSynthError:
    message = f"input has {word!r} in {script} script, which this English voice cannot say"
    return StreamSynthError(ErrorCode.UNSUPPORTED_LANGUAGE, message, param="input")


def spell_out(text: str) -> str:
    """What hibari's reader is given for `text`: one line, signs and awkward numbers in words.

    Raises UNSUPPORTED_LANGUAGE.
    """
    refuse_foreign(text)
    if not text.isascii():
        text = fold(_name_signs(text), _KEPT)
    text = _LINK.sub(r"\1", _BULLET.sub("", " ".join(text.split())))
    text = _EMOTICON.sub(" ", text)
    text = _ADDRESS.sub(_read_address, text)
    text = _DOTTED_NUMBER.sub(_read_dotted, text)
    text = _COMMA_NUMBER.sub(_read_commas, text)
    text = _BARE_FRACTION.sub("0.", text)
    text = _LEADING_ZEROS.sub(_read_digits, text)
    text = _LONG_NUMBER.sub(_read_digits, text)
    text = _LONE_DOLLAR.sub(" dollar ", text)
    return _LONG_RUN.sub(_break_run, _ABOUT.sub("about ", text))


def _name_signs(text: str) -> str:
    """Signs, Greek letters and powers in words."""
    text = _MICRO.sub(r"\1µ", unicodedata.normalize("NFC", text))
    text = _OHMS.sub(lambda match: {"k": " kilohms", "M": " megohms", "": " ohms"}[match[1]], text)
    text = _MONEY_SIGN.sub(lambda match: f" {_CURRENCIES[match[0]]} ", _MONEY.sub(_read_money, text))
    text = _GREEK.sub(lambda match: f" {_greek_name(match[0])} ", text)
    text = _POWER.sub(_read_power, text)
    return "".join(_SIGNS.get(character) or _sign_name(character) for character in text)


def _sign_name(character: str) -> str:
    """A mathematical sign without a short name of its own is read by its Unicode name."""
    if character.isascii() or character in _KEPT or unicodedata.category(character) != "Sm":
        return "" if character in _SIGNS else character
    return f" {unicodedata.name(character).lower()} "


def _greek_name(letter: str) -> str:
    if script_of(letter) != "Greek":
        return letter
    name = unicodedata.name(unicodedata.normalize("NFD", letter)[0], "")
    return name.replace("LAMDA", "LAMBDA").removesuffix(" SYMBOL").split(" ")[-1].lower()


def _read_power(match: re.Match[str]) -> str:
    if match[0] in "²³":
        return match[0]
    digits = match[0].translate(_SUPERSCRIPTS)
    return f" to the power of {digits.replace('-', 'minus ').replace('+', 'plus ')} "


def _read_money(match: re.Match[str]) -> str:
    return f"{match[2]} {_CURRENCIES[match[1]]}"


def _read_address(match: re.Match[str]) -> str:
    text = match[0].replace("www.", "w w w dot ").replace("://", " colon slash slash ")
    return _ADDRESS_SIGN.sub(lambda sign: _ADDRESS_WORDS.get(sign[0], " "), text)


def _read_dotted(match: re.Match[str]) -> str:
    return match[0].replace(".", " dot " if match[0].count(".") == 3 else " point ")


def _read_commas(match: re.Match[str]) -> str:
    """Thousands stay; one comma is a decimal comma; more are a list."""
    number = match[0]
    if _THOUSANDS.fullmatch(number):
        return number
    if number.count(",") == 1 and "." not in number:
        return number.replace(",", ".")
    return number.replace(",", ", ")


def _read_digits(match: re.Match[str]) -> str:
    return f" {' '.join(match[0].replace(',', ''))} "


def _break_run(match: re.Match[str]) -> str:
    """hibari takes seconds over a long run of letters, digits and signs without a space; a plain word is no trouble."""
    run = match[0]
    if run.isalpha() and (run[1:].islower() or run.isupper()):
        return run
    return " ".join(_RUN_PART.findall(run))
