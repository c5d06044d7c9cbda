"""What is written short in English text and read long: abbreviations, units, currencies, signs."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MONTHS = _words("January February March April May June July August September October November December")

TITLES = {
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miz",
    "Dr": "Doctor",
    "St": "Saint",
    "Mt": "Mount",
    "Ft": "Fort",
    "Prof": "Professor",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Gen": "General",
    "Col": "Colonel",
    "Maj": "Major",
    "Capt": "Captain",
    "Cmdr": "Commander",
    "Lt": "Lieutenant",
    "Sgt": "Sergeant",
    "Cpl": "Corporal",
    "Gov": "Governor",
    "Sen": "Senator",
    "Rep": "Representative",
    "Pres": "President",
    "Supt": "Superintendent",
}
"""Before a capitalised word."""

ABBREVIATIONS = {
    "St": "Street",
    "Ave": "Avenue",
    "Blvd": "Boulevard",
    "Rd": "Road",
    "Hwy": "Highway",
    "Jr": "Junior",
    "Sr": "Senior",
    "Inc": "Incorporated",
    "Ltd": "Limited",
    "Corp": "Corporation",
    "Co": "Company",
    "Dept": "Department",
    "dept": "department",
    "Univ": "University",
    "Bros": "Brothers",
    "Assn": "Association",
    "approx": "approximately",
    "appt": "appointment",
    "apt": "apartment",
    "Apt": "Apartment",
    "est": "estimated",
    "etc": "et cetera",
    "esp": "especially",
    "e.g": "for example",
    "i.e": "that is",
    "cf": "compare",
    "vs": "versus",
    "viz": "namely",
    "govt": "government",
    "min": "minimum",
    "max": "maximum",
    "misc": "miscellaneous",
    "tel": "telephone",
    "ext": "extension",
    "temp": "temperature",
    **{month[:3]: month for month in MONTHS if month != "May"},
    "Sept": "September",
    "Mon": "Monday",
    "Tue": "Tuesday",
    "Tues": "Tuesday",
    "Wed": "Wednesday",
    "Thu": "Thursday",
    "Thur": "Thursday",
    "Thurs": "Thursday",
    "Fri": "Friday",
}
"""With a period."""

BEFORE_NUMBER = {
    "No": "number",
    "no": "number",
    "Nos": "numbers",
    "nos": "numbers",
    "Nr": "number",
    "p": "page",
    "pp": "pages",
    "ch": "chapter",
    "Ch": "Chapter",
    "Fig": "Figure",
    "fig": "figure",
    "Figs": "Figures",
    "figs": "figures",
    "Eq": "Equation",
    "eq": "equation",
    "Sec": "Section",
    "sec": "section",
    "Vol": "Volume",
    "vol": "volume",
    "Vols": "Volumes",
    "Art": "Article",
    "art": "article",
}
"""With a period and a number behind it."""

UNITS = {
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "m/s": ("meter per second", "meters per second"),
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "µm": ("micrometer", "micrometers"),
    "nm": ("nanometer", "nanometers"),
    "m": ("meter", "meters"),
    "mi": ("mile", "miles"),
    "mph": ("mile per hour", "miles per hour"),
    "ft": ("foot", "feet"),
    "yd": ("yard", "yards"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "g": ("gram", "grams"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"),
    "l": ("liter", "liters"),
    "L": ("liter", "liters"),
    "gal": ("gallon", "gallons"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "KB": ("kilobyte", "kilobytes"),
    "kB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "kbps": ("kilobit per second", "kilobits per second"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "W": ("watt", "watts"),
    "kW": ("kilowatt", "kilowatts"),
    "MW": ("megawatt", "megawatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "V": ("volt", "volts"),
    "mV": ("millivolt", "millivolts"),
    "mA": ("milliamp", "milliamps"),
    "mAh": ("milliamp hour", "milliamp hours"),
    "dB": ("decibel", "decibels"),
    "rpm": ("turn per minute", "turns per minute"),
    "psi": ("P S I", "P S I"),
    "px": ("pixel", "pixels"),
    "ms": ("millisecond", "milliseconds"),
    "µs": ("microsecond", "microseconds"),
    "s": ("second", "seconds"),
    "sec": ("second", "seconds"),
    "secs": ("second", "seconds"),
    "min": ("minute", "minutes"),
    "mins": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "yr": ("year", "years"),
    "yrs": ("year", "years"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
    "%": ("percent", "percent"),
    "¢": ("cent", "cents"),
}
"""Behind a number: for one, and for more."""

CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₩": ("won", "won", "jeon", "jeon"),
    "USD": ("US dollar", "US dollars", "cent", "cents"),
    "EUR": ("euro", "euros", "cent", "cents"),
    "GBP": ("pound", "pounds", "penny", "pence"),
    "CHF": ("Swiss franc", "Swiss francs", "centime", "centimes"),
}

MULTIPLES = {
    "K": "thousand",
    "k": "thousand",
    "M": "million",
    "m": "million",
    "mn": "million",
    "B": "billion",
    "bn": "billion",
    "T": "trillion",
    **{word: word for word in ("hundred", "thousand", "million", "billion", "trillion")},
}
"""Behind an amount of money."""

SIGNS = {
    "%": "percent",
    "&": "and",
    "+": "plus",
    "=": "equals",
    "@": "at",
    "#": "hash",
    "<": "less than",
    ">": "greater than",
    "^": "to the power of",
    "×": "times",
    "÷": "divided by",
    "±": "plus or minus",
    "°": "degrees",
    "²": "squared",
    "³": "cubed",
    "£": "pounds",
    "€": "euros",
    "¥": "yen",
    "₹": "rupees",
    "₩": "won",
    "¢": "cents",
    "$": "dollars",
    "§": "section",
    "¶": "paragraph",
    "©": "copyright",
    "½": "one half",
    "¼": "one quarter",
    "¾": "three quarters",
    "µ": "micro",
}
"""Wherever no rule has read them."""

FRACTIONS = {2: "half", 3: "third", 4: "quarter", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth", 9: "ninth"}

NUMBERED = _words(
    "Act Appendix Article Book Chapter Class Figure Level Part Phase Scene Section Stage Step Table Title Type Volume "
    "War"
)
"""A Roman number behind one of these counts."""

NUMBERED_NAMES = _words(
    "Alexander Benedict Catherine Charles Edward Elizabeth Francis Frederick George Gregory Henry James John Louis "
    "Mary Napoleon Nicholas Paul Peter Philip Pius Richard Wilhelm William"
)
"""A Roman number behind one of these is an ordinal."""
