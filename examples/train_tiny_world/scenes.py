"""Scenes: one value of each attribute of the world."""

from __future__ import annotations

from dataclasses import dataclass

from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES


@dataclass(frozen=True)
class Scene:
    """One value of each attribute, by its name."""

    count: str
    colour: str
    shape: str
    motion: str
    background: str
    time: str
    weather: str

    def __post_init__(self) -> None:
        for attribute, values in ATTRIBUTES.items():
            value = getattr(self, attribute)
            if value not in values:
                raise ValueError(f"{attribute} {value!r} is none of {', '.join(values)}")

    def labels(self) -> list[int]:
        """The index of each value, in the order of `ATTRIBUTES`."""
        return [values.index(getattr(self, attribute)) for attribute, values in ATTRIBUTES.items()]


def scene_of(labels: list[int]) -> Scene:
    return Scene(*(values[label] for values, label in zip(ATTRIBUTES.values(), labels, strict=True)))
