"""The backgrounds: sky, and meadow, desert, sea, city or space below it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from train_tiny_world.painting import chance, column, cover, grid, mixed, over, points, smooth


@dataclass(frozen=True)
class Moment:
    """Some frames: their clock (frames,), their place's character (frames, 8), and mixtures of time and weather."""

    seconds: Tensor
    character: Tensor
    time: Tensor
    weather: Tensor

    def __getitem__(self, chosen: Tensor) -> Moment:
        return Moment(*(part[chosen] for part in (self.seconds, self.character, self.time, self.weather)))

    def scroll(self, speed: float) -> Tensor:
        """How far a layer has passed by, (frames, 1, 1)."""
        return column(self.seconds * speed + self.character[:, 0] * 500)

    def phase(self, index: int) -> Tensor:
        return column(self.character[:, index] * 2 * math.pi)

    @property
    def overcast(self) -> Tensor:
        """How much clouds hide the sky, (frames, 1, 1)."""
        return column((self.weather[:, 1:] * self.weather.new_tensor([0.85, 0.7, 0.8])).sum(1))

    @property
    def night(self) -> Tensor:
        return column(self.time[:, 2])


# Colours are rows of day, dusk, night.
_SKY_TOP = ((64, 140, 230), (72, 52, 120), (8, 12, 38))
_SKY_LOW = ((186, 224, 250), (255, 158, 92), (32, 44, 92))
_GREY_TOP = ((128, 140, 154), (96, 84, 104), (24, 28, 44))
_GREY_LOW = ((186, 194, 202), (176, 138, 122), (52, 60, 80))


def sky(moment: Moment, horizon: float = 86) -> Tensor:
    x, y = grid(moment.seconds.device)
    down = smooth(y / horizon, 0, 1).expand(len(moment.seconds), -1, -1)
    blue = over(mixed(moment.time, _SKY_TOP).expand(-1, 3, *x.shape[1:]), mixed(moment.time, _SKY_LOW), down)
    grey = over(mixed(moment.time, _GREY_TOP).expand(-1, 3, *x.shape[1:]), mixed(moment.time, _GREY_LOW), down)
    open_sky = 1 - moment.overcast
    picture = _stars(blue, moment, moment.night, moment.scroll(0.5))
    picture = _sun_and_moon(picture, moment)
    picture = _clouds(picture, moment)
    return torch.lerp(grey, picture, open_sky[:, None])


def _stars(picture: Tensor, moment: Moment, strength: Tensor, scroll: Tensor) -> Tensor:
    x, y = grid(picture.device)
    star, own = points(x + scroll, y, 15, 0.9, 11, 0.8)
    twinkle = 0.65 + 0.35 * torch.sin(column(moment.seconds) * (1 + 2 * own) + own * 40)
    return over(picture, mixed(moment.time, ((255, 255, 255),) * 3), star * twinkle * strength)


def _sun_and_moon(picture: Tensor, moment: Moment) -> Tensor:
    x, y = grid(picture.device)
    lean = column(moment.character[:, 1]) * 24
    for index, (right, top, radius, colour, glow) in enumerate(
        ((88, 22, 8, (255, 246, 190), 26), (74, 70, 13, (255, 214, 120), 40), (86, 24, 8, (238, 240, 225), 18))
    ):
        weight = column(moment.time[:, index])
        away = torch.hypot(x - right - lean, y - top)
        disc = cover(away - radius)
        if index == 2:
            disc = disc * (1 - cover(torch.hypot(x - right - lean + 4, y - top + 2.5) - radius, 1.5))
        halo = 0.45 * torch.exp(-((away / glow) ** 2))
        picture = over(picture, mixed(moment.time, (colour,) * 3), torch.maximum(disc, halo) * weight)
    return picture


def _clouds(picture: Tensor, moment: Moment) -> Tensor:
    x, y = grid(picture.device)
    along = x + moment.scroll(3)
    bulge = torch.sin(along * 0.055) + 0.6 * torch.sin(along * 0.13 + 1.3) + 0.3 * torch.sin(along * 0.31 + y * 0.1)
    centre = 26 + 8 * torch.sin(along * 0.021 + moment.phase(2))
    thickness = (bulge - 0.35) * 6
    cloud = smooth(thickness - (y - centre).abs(), -2.5, 3.5)
    return over(picture, mixed(moment.time, ((255, 255, 255), (255, 190, 150), (60, 70, 110))), 0.7 * cloud)


def meadow(moment: Moment) -> Tensor:
    picture = sky(moment)
    x, y = grid(picture.device)
    for index, (level, height, speed, low, high) in enumerate(
        (
            (
                80,
                7,
                1.0,
                ((96, 168, 140), (92, 88, 96), (26, 58, 70)),
                ((120, 186, 156), (128, 104, 100), (34, 72, 84)),
            ),
            (90, 6, 2.5, ((70, 158, 78), (84, 96, 60), (18, 62, 50)), ((104, 186, 88), (132, 122, 64), (28, 84, 62))),
            (102, 5, 5.0, ((46, 126, 44), (50, 72, 34), (10, 48, 30)), ((92, 176, 62), (104, 112, 50), (24, 84, 48))),
        )
    ):
        along = x + moment.scroll(speed)
        ridge = level - height * torch.sin(along * (0.05 + 0.012 * index) + moment.phase(3 + index))
        ridge = ridge - 0.4 * height * torch.sin(along * 0.11 + moment.phase(4 + index))
        shade = smooth(y - ridge, 0, 26)
        ground = over(mixed(moment.time, high).expand_as(picture), mixed(moment.time, low), shade)
        picture = over(picture, ground, cover(ridge - y))
    flower, own = points(x + moment.scroll(5), y, 13, 1.3, 21, 0.6)
    petals = mixed(moment.time, ((255, 214, 90), (232, 150, 80), (80, 92, 84)))
    return over(picture, petals, flower * (y > 108) * (0.5 + 0.5 * own))


def desert(moment: Moment) -> Tensor:
    picture = sky(moment)
    x, y = grid(picture.device)
    layers = (
        (
            82,
            9,
            1.0,
            ((226, 178, 118), (178, 104, 88), (74, 62, 78)),
            ((240, 200, 142), (226, 140, 100), (100, 84, 96)),
        ),
        (92, 10, 2.5, ((214, 156, 88), (150, 82, 66), (66, 54, 68)), ((246, 204, 130), (222, 132, 84), (112, 92, 98))),
        (106, 9, 5.0, ((204, 138, 70), (126, 66, 52), (56, 44, 56)), ((250, 206, 124), (210, 118, 70), (108, 88, 90))),
    )
    for index, (level, height, speed, shadow, light) in enumerate(layers):
        along = (x + moment.scroll(speed)) * (0.034 + 0.006 * index) + moment.phase(3 + index)
        # A sine that leans over: long windward slopes, short lee ones.
        lean = along + 0.6 * torch.sin(along)
        ridge = level - height * torch.sin(lean)
        lit = smooth(torch.cos(lean), -0.35, 0.35) * (1 - 0.5 * smooth(y - ridge, 0, 34))
        sand = over(mixed(moment.time, shadow).expand_as(picture), mixed(moment.time, light), lit)
        picture = over(picture, sand, cover(ridge - y))
    return picture


def sea(moment: Moment) -> Tensor:
    horizon = 72.0
    picture = sky(moment, horizon)
    x, y = grid(picture.device)
    depth = ((y - horizon) / (128 - horizon)).clamp(0, 1)
    water = over(
        mixed(moment.time, ((92, 178, 214), (214, 124, 104), (24, 40, 84))).expand_as(picture),
        mixed(moment.time, ((12, 70, 132), (58, 40, 92), (6, 14, 38))),
        smooth(depth, 0, 0.9).expand(len(picture), -1, -1),
    )
    clock = column(moment.seconds)
    near = torch.log1p(depth * 9) * 16
    swell = torch.sin(near * 1.7 - clock * 1.9 + 1.2 * torch.sin(x * 0.07 + clock * 0.7 + moment.phase(3)))
    crest = smooth(swell, 0.55, 1.0) * (0.25 + 0.35 * depth)
    water = over(water, mixed(moment.time, ((226, 244, 250), (255, 196, 150), (92, 120, 176))), crest)
    lean = column(moment.character[:, 1]) * 24
    path = torch.exp(-(((x - 80 - lean) / (6 + 22 * depth)) ** 2)) * smooth(
        torch.sin(near * 3.1 - clock * 2.7 + x * 0.3), 0, 0.9
    )
    shine = mixed(moment.time, ((255, 252, 220), (255, 220, 130), (214, 222, 236)))
    water = over(water, shine, 0.7 * path * (1 - moment.overcast))
    return over(picture, water, cover(horizon - y).expand(len(picture), -1, -1))


def city(moment: Moment) -> Tensor:
    picture = sky(moment, 100)
    for far in (True, False):
        picture = _houses(picture, moment, far)
    x, y = grid(picture.device)
    street = mixed(moment.time, ((92, 96, 104), (62, 52, 66), (20, 22, 34)))
    picture = over(picture, street, cover(116 - y).expand(len(picture), -1, -1))
    dash = cover(((x + moment.scroll(6)) % 16 - 8).abs() - 4) * cover((y - 122).abs() - 1)
    return over(picture, mixed(moment.time, ((232, 228, 210), (190, 160, 140), (96, 96, 110))), dash)


def _houses(picture: Tensor, moment: Moment, far: bool) -> Tensor:
    x, y = grid(picture.device)
    pitch, speed, seed = (17.0, 1.5, 31) if far else (23.0, 4.0, 41)
    along = x + moment.scroll(speed)
    house = torch.floor(along / pitch)
    own = chance(house, seed)
    top = (44 + 34 * own) if far else (66 + 34 * own)
    half = pitch / 2 - 0.5 - 2.5 * chance(house, seed + 1)
    across = along - (house + 0.5) * pitch
    body = cover(across.abs() - half) * cover(top - y)
    walls = ((150, 164, 190), (116, 84, 116), (26, 30, 56)) if far else ((104, 112, 134), (76, 54, 84), (16, 18, 36))
    tint = (0.82 + 0.36 * chance(house, seed + 2))[:, None]
    picture = over(picture, (mixed(moment.time, walls) * tint).clamp(0, 1), body)
    if far:
        return picture
    floor, window = torch.floor((y - top) / 6), torch.floor(across / 5 + 40)
    pane = cover(((y - top) % 6 - 3).abs() - 1.7) * cover((across + 200 - window * 5 - 2.5).abs() - 1.3)
    inside = (across.abs() < half - 1) & (y > top + 2) & (y < 116)
    lamps = column(moment.time @ moment.time.new_tensor([0.25, 0.5, 0.6]))
    lit = (chance(house, floor, window, seed) < lamps).float()
    glass = torch.lerp(
        mixed(moment.time, ((70, 82, 108), (50, 38, 64), (24, 28, 50))).expand_as(picture),
        mixed(moment.time, ((190, 212, 230), (255, 200, 120), (255, 216, 130))).expand_as(picture),
        lit[:, None],
    )
    return over(picture, glass, pane * inside * 0.9)


def space(moment: Moment) -> Tensor:
    x, y = grid(moment.seconds.device)
    frames = len(moment.seconds)
    slant = smooth(y + 0.4 * x, 10, 160).expand(frames, -1, -1)
    picture = over(
        mixed(moment.time, ((58, 74, 168), (84, 30, 96), (4, 4, 14))).expand(-1, 3, *x.shape[1:]),
        mixed(moment.time, ((24, 30, 92), (200, 84, 72), (16, 10, 36))),
        slant,
    )
    along = x + moment.scroll(1)
    cloud = torch.sin(along * 0.05 + y * 0.04) + torch.sin(along * 0.083 - y * 0.061 + moment.phase(3))
    cloud = cloud + 0.5 * torch.sin(along * 0.02 + y * 0.12 + moment.phase(4))
    nebula = mixed(moment.time, ((120, 150, 240), (236, 120, 140), (72, 40, 110)))
    picture = over(picture, nebula, 0.45 * smooth(cloud, 0.3, 2.2))
    picture = _stars(picture, moment, torch.full_like(moment.night, 0.95), moment.scroll(2))
    picture = _planet(picture, moment)
    return torch.lerp(picture, picture * 0.8 + 0.08, 0.8 * moment.overcast[:, None])


def _planet(picture: Tensor, moment: Moment) -> Tensor:
    x, y = grid(picture.device)
    right, down = x - 26 - 10 * column(moment.character[:, 5]), y - 104
    away = torch.hypot(right, down)
    light = smooth(-right - 0.8 * down, -26, 30)
    stripes = 0.88 + 0.12 * torch.sin(down * 0.55 + right * 0.18 + moment.phase(6))
    lit = mixed(moment.time, ((250, 206, 150), (255, 176, 130), (150, 124, 150)))
    dark = mixed(moment.time, ((128, 90, 116), (110, 48, 84), (26, 20, 44)))
    ball = torch.lerp(dark.expand_as(picture), lit.expand_as(picture), light[:, None]) * stripes[:, None]
    picture = over(picture, ball, cover(away - 21))
    ring = torch.hypot(right + 0.35 * down, 3.4 * (down - 0.3 * right))
    band = cover((ring - 33).abs() - 3.2, 3.0) * (1 - cover(away - 21) * (down - 0.3 * right < 0))
    return over(picture, mixed(moment.time, ((236, 220, 190), (250, 190, 150), (130, 116, 140))), 0.85 * band)


SCENES = (meadow, desert, sea, city, space)
"""In the order of `BACKGROUNDS`."""
