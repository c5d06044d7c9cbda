"""Paints tracks into pictures: scenery, then things, then weather."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from train_tiny_world.motion import SIZE, THINGS, WRAP, Tracks
from train_tiny_world.painting import chance, colours, column, cover, grid, mixed, over, points, smooth
from train_tiny_world.scenery import SCENES, Moment

_COLOURS = ((226, 40, 40), (40, 90, 235), (40, 185, 70), (252, 214, 44), (248, 248, 250), (152, 62, 208))
_VISIBLE = 0.01


def render(tracks: Tracks) -> Tensor:
    """(clips, frames, 3, 128, 128) from 0 to 1, float32."""
    clips, frames = tracks.seconds.shape
    # What is painted at once: a CPU's cache holds few pictures, a GPU wants many.
    batch = 512 if tracks.seconds.is_cuda else 16
    character = tracks.character[:, None].expand(-1, frames, -1).flatten(0, 1)
    moment = Moment(tracks.seconds.flatten(), character, tracks.time.flatten(0, 1), tracks.weather.flatten(0, 1))
    flat = [
        getattr(tracks, name).flatten(0, 1)
        for name in ("background", "x", "y", "radius", "angle", "presence", "shape", "colour")
    ]
    out = torch.empty(clips * frames, 3, SIZE, SIZE, device=character.device)
    for start in range(0, len(out), batch):
        some = torch.arange(start, min(start + batch, len(out)), device=out.device)
        background, *things = (part[some] for part in flat)
        out[some] = _frame(moment[some], background, things)
    return out.unflatten(0, (clips, frames))


def _frame(moment: Moment, background: Tensor, things: list[Tensor]) -> Tensor:
    picture = _scenery(moment, background)
    picture = _lit_by_weather(picture, moment)
    picture = _fog(picture, moment, 0.92)
    for index in range(THINGS):
        picture = _thing(picture, moment, index, *things)
    picture = _fog(picture, moment, 0.3)
    return _falling(picture, moment).clamp(0, 1)


def _scenery(moment: Moment, background: Tensor) -> Tensor:
    """A cross-fade where several backgrounds are present; each is painted only for the frames that show it."""
    shares = torch.where(background > _VISIBLE, background, 0.0)
    shares = shares / shares.sum(1, keepdim=True)
    out = torch.zeros(len(shares), 3, SIZE, SIZE, device=shares.device)
    for index, scene in enumerate(SCENES):
        chosen = shares[:, index].nonzero()[:, 0]
        if len(chosen):
            out[chosen] += scene(moment[chosen]) * shares[chosen, index][:, None, None, None]
    return out


def _lit_by_weather(picture: Tensor, moment: Moment) -> Tensor:
    """Rain dulls what is below, snow lies on it."""
    _, y = grid(picture.device)
    rain, snow = column(moment.weather[:, 1]), column(moment.weather[:, 2])
    grey = picture.mean(1, keepdim=True)
    dull = (0.55 * picture + 0.45 * grey) * picture.new_tensor([0.84, 0.9, 1.0])[:, None, None] * 0.82
    picture = torch.lerp(picture, dull, rain[:, None])
    white = mixed(moment.time, ((244, 248, 252), (214, 196, 206), (104, 116, 148)))
    return over(picture, white, snow * 0.55 * smooth(y, 70, 100))


def _fog(picture: Tensor, moment: Moment, strength: float) -> Tensor:
    x, y = grid(picture.device)
    clock = column(moment.seconds)
    wisps = torch.sin(x * 0.045 + clock * 0.5) + torch.sin(x * 0.07 - y * 0.09 - clock * 0.35 + moment.phase(7))
    density = (0.54 + 0.1 * wisps + 0.1 * smooth(y, 30, 110)).clamp(0, 1)
    mist = mixed(moment.time, ((216, 222, 226), (206, 172, 160), (66, 72, 90)))
    return over(picture, mist, density * strength * column(moment.weather[:, 3]))


def _thing(
    picture: Tensor,
    moment: Moment,
    index: int,
    x: Tensor,
    y: Tensor,
    radius: Tensor,
    angle: Tensor,
    presence: Tensor,
    shape: Tensor,
    colour: Tensor,
) -> Tensor:
    columns, rows = grid(picture.device)
    shown = (presence[:, index] > _VISIBLE).nonzero()[:, 0]
    if not len(shown):
        return picture
    across = (columns - column(x[shown, index]) + WRAP / 2) % WRAP - WRAP / 2
    down = rows - column(y[shown, index])
    size = column(radius[shown, index]).clamp_min(0.5)
    cos, sin = column(angle[shown, index].cos()), column(angle[shown, index].sin())
    right, below = across * cos + down * sin, down * cos - across * sin
    distance = _distance(right, below, size, shape[shown])
    # A ball is round, and gleams; the others are flat: what tells a small ball from a small square at a glance.
    round_part = column(shape[shown, 0])
    dome = (1.1 - torch.hypot(across + 0.36 * size, down + 0.4 * size) / (1.5 * size)).clamp(0, 1)
    light = torch.lerp(torch.full_like(dome, 0.62), dome, round_part)
    gleam = torch.exp(-((torch.hypot(across + 0.36 * size, down + 0.4 * size) / (0.24 * size)) ** 2)) * round_part
    ambient = moment.time[shown] @ picture.new_tensor([1.0, 0.96, 0.9])
    base = (colour[shown] @ colours(_COLOURS, picture.device) * ambient[:, None])[:, :, None, None]
    body = base * (0.52 + 0.56 * light)[:, None]
    body = torch.lerp(body, torch.ones_like(body), (0.55 * gleam)[:, None]).clamp(0, 1)
    # A dark rim keeps green from grass and white from fog.
    body = over(body, base * 0.3, cover(-distance - 1.6))
    alpha = cover(distance) * column(presence[shown, index]).clamp(0, 1)
    out = picture.clone()
    shadow = 0.22 * torch.exp(-(((distance + 1).clamp_min(0) / 3.5) ** 2)) * column(presence[shown, index])
    out[shown] = over(over(picture[shown], torch.zeros_like(base), shadow), body, alpha)
    return out


def _distance(x: Tensor, y: Tensor, size: Tensor, shape: Tensor) -> Tensor:
    """Signed distance in pixels to ball, square, triangle and star of about the same area, mixed by `shape`."""
    ball = torch.hypot(x, y) - size
    half = 0.86 * size
    square = torch.maximum(x.abs() - half, y.abs() - half)
    low = y - 0.72 * size
    sides = 0.866 * x.abs() - 0.5 * (y + 1.32 * size)
    triangle = torch.maximum(low, sides + 0.02 * size)
    return sum(
        column(shape[:, index]) * part for index, part in enumerate((ball, square, triangle, _star(x, y, 1.28 * size)))
    )  # type: ignore[return-value]


def _star(x: Tensor, y: Tensor, size: Tensor) -> Tensor:
    """Five points: the plane folded to one tenth, then the distance to an edge."""
    fold = 2 * math.pi / 5
    turn = torch.atan2(x, -y)
    folded = ((turn + fold / 2) % fold - fold / 2).abs()
    away = torch.hypot(x, y)
    u, v = away * torch.cos(folded), away * torch.sin(folded)
    # From the tip (size, 0) to the notch between two points.
    notch = 0.46
    tip_to_notch = (notch * math.cos(fold / 2) - 1, notch * math.sin(fold / 2))
    length = math.hypot(*tip_to_notch)
    return ((u - size) * -tip_to_notch[1] + v * tip_to_notch[0]) / -length


def _falling(picture: Tensor, moment: Moment) -> Tensor:
    x, y = grid(picture.device)
    wet = (moment.weather[:, 1] > _VISIBLE).nonzero()[:, 0]
    if len(wet):
        picture = picture.clone()
        picture[wet] = _rain(picture[wet], moment[wet], x, y)
    white = (moment.weather[:, 2] > _VISIBLE).nonzero()[:, 0]
    if len(white):
        picture = picture.clone()
        picture[white] = _snow(picture[white], moment[white], x, y)
    return picture


def _rain(picture: Tensor, moment: Moment, x: Tensor, y: Tensor) -> Tensor:
    colour = mixed(moment.time, ((214, 228, 244), (226, 214, 222), (136, 156, 196)))
    for pitch, speed, length, seed in ((17.0, 110.0, 20.0, 51), (25.0, 150.0, 28.0, 57)):
        across, down = x + 0.22 * y, y - column(moment.seconds) * speed
        lane = torch.floor(across / pitch)
        start = chance(lane, seed) * 64
        along = (down + start) % 64
        streak = cover((across - (lane + 0.5) * pitch).abs() - 0.9) * cover((along - 32).abs() - length / 2, 4.0)
        picture = over(picture, colour, 0.7 * streak * column(moment.weather[:, 1]))
    return picture


def _snow(picture: Tensor, moment: Moment, x: Tensor, y: Tensor) -> Tensor:
    colour = mixed(moment.time, ((255, 255, 255), (255, 246, 248), (222, 230, 246)))
    clock = column(moment.seconds)
    for cell, radius, speed, seed in ((25.0, 2.4, 14.0, 61), (37.0, 3.6, 22.0, 67)):
        sway = 2.5 * torch.sin(clock * 1.3 + seed)
        flake, _ = points(x + sway + 0.15 * y, y - clock * speed, cell, radius, seed, 0.85)
        picture = over(picture, colour, 0.95 * flake * column(moment.weather[:, 2]))
    return picture
