"""What tiny-world can show, and the words for it."""

from __future__ import annotations

from types import MappingProxyType

COUNTS = ("one", "two", "three")
COLOURS = ("red", "blue", "green", "yellow", "white", "purple")
SHAPES = ("ball", "square", "triangle", "star")
MOTIONS = ("left", "right", "bouncing", "orbiting", "growing")
BACKGROUNDS = ("meadow", "desert", "sea", "city", "space")
TIMES = ("day", "dusk", "night")
WEATHERS = ("clear", "rain", "snow", "fog")

ATTRIBUTES = MappingProxyType(
    {
        "count": COUNTS,
        "colour": COLOURS,
        "shape": SHAPES,
        "motion": MOTIONS,
        "background": BACKGROUNDS,
        "time": TIMES,
        "weather": WEATHERS,
    }
)
"""The values of every attribute, in the order of the training's labels."""

NOUNS = {
    "ball": ("ball", "ball", "sphere", "circle", "orb", "disc", "bubble"),
    "square": ("square", "square", "box", "block", "cube", "tile"),
    "triangle": ("triangle", "triangle", "wedge", "pyramid"),
    "star": ("star", "star", "starfish", "pentagram"),
}

NUMBERS = {
    "one": ("a", "a", "one", "a single", "1", "a lone", "just one"),
    "two": ("two", "two", "2", "a pair of", "a couple of"),
    "three": ("three", "three", "3", "a trio of", "a group of three"),
}

ADJECTIVES = {
    "red": ("red", "red", "crimson", "scarlet", "ruby"),
    "blue": ("blue", "blue", "azure", "cobalt", "navy"),
    "green": ("green", "green", "emerald", "lime"),
    "yellow": ("yellow", "yellow", "golden", "lemon", "amber"),
    "white": ("white", "white", "ivory", "pale"),
    "purple": ("purple", "purple", "violet", "lilac", "magenta"),
}

MOVES = {
    "left": ("moving left", "going left", "drifting to the left", "sliding left", "flying left", "moving to the left",
             "heading left", "travelling left", "gliding leftwards"),
    "right": ("moving right", "going right", "drifting to the right", "sliding right", "flying right",
              "moving to the right", "heading right", "travelling right", "gliding rightwards"),
    "bouncing": ("bouncing", "bouncing", "jumping", "hopping", "bouncing up and down", "leaping"),
    "orbiting": ("orbiting", "circling", "going in circles", "revolving", "moving in a circle", "going round and round",
                 "flying in a circle"),
    "growing": ("growing", "growing", "getting bigger", "swelling", "expanding", "inflating", "becoming larger"),
}  # fmt: skip

PLACES = {
    "meadow": (
        "a meadow",
        "a green meadow",
        "the meadow",
        "a field",
        "the grass",
        "grassland",
        "green hills",
        "a pasture",
    ),
    "desert": ("a desert", "the desert", "sand dunes", "the sand", "the dunes", "a sandy desert"),
    "sea": ("the sea", "the ocean", "the waves", "the water", "a blue sea", "the open sea"),
    "city": ("a city", "the city", "a town", "skyscrapers", "a skyline", "the streets"),
    "space": ("space", "outer space", "the planets", "the cosmos", "the galaxy", "the universe"),
}  # fmt: skip

HOURS = {
    "day": ("by day", "day", "daytime", "during the day", "in daylight", "at noon", "at midday"),
    "dusk": ("at dusk", "dusk", "at sunset", "in the evening", "at twilight", "in the evening light", "at sundown"),
    "night": ("at night", "night", "by night", "at midnight", "in the dark", "in the moonlight", "after dark"),
}

SKIES = {
    "clear": ("clear sky", "a clear sky", "no clouds", "fine weather", "clear weather", "dry weather", "clear skies"),
    "rain": ("rain", "in the rain", "rain falling", "it is raining", "rainy", "rain falls", "a downpour", "it rains",
             "rainfall"),
    "snow": ("snow", "snow falling", "it is snowing", "snowy", "snow falls", "in the snow", "snowflakes", "a blizzard",
             "it snows", "snowfall"),
    "fog": ("fog", "in the fog", "foggy", "misty", "in the mist", "fog rolling in", "fog everywhere", "haze",
            "fog rises"),
}  # fmt: skip


def plural(noun: str) -> str:
    if noun == "starfish":
        return noun
    return noun + ("es" if noun.endswith(("s", "x")) else "s")
