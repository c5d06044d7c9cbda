"""The procedural world: prompts mean what they say, pictures show it, nothing jumps when a prompt changes."""

from __future__ import annotations

import random

import pytest
import torch
from train_tiny_world.composing import compose
from train_tiny_world.focus import CELL, focus
from train_tiny_world.judge import Judge, JudgeBatch, accuracies, augmented, clean_batch, first_seen, train_judge
from train_tiny_world.motion import SIZE, WRAP, Tracks, one_hot_targets, simulate
from train_tiny_world.render import render
from train_tiny_world.scenes import Scene, scene_of
from train_tiny_world.text_tokens import TEXT_LENGTH, encode, tokenizer

from streamsynth.models.tiny_world.reading import in_words, parse
from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES, MOTIONS

COLOURS_RGB = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1)}


def scene(**changed: str) -> Scene:
    plain = {
        "count": "one", "colour": "red", "shape": "ball", "motion": "right", "background": "meadow", "time": "day",
        "weather": "clear",
    }  # fmt: skip
    return Scene(**(plain | changed))


def tracks_of(*scenes: Scene, frames: int = 8, seed: int = 0) -> Tracks:
    """One clip that shows the scenes in turn, each for so many frames."""
    labels = torch.tensor([labels for each in scenes for labels in [each.labels()] * frames])
    return simulate(one_hot_targets(labels[None]), torch.Generator().manual_seed(seed))


def test_a_prompt_of_any_words_in_any_order_is_read_as_the_scene_it_was_written_from() -> None:
    rng = random.Random(0)
    for _ in range(1500):
        wished = scene_of([rng.randrange(len(values)) for values in ATTRIBUTES.values()])
        chosen = [name for name in ATTRIBUTES if rng.random() < 0.6] or ["weather"]
        reading = parse(compose(wished, chosen, rng))
        assert reading.values == {name: getattr(wished, name) for name in chosen}
        assert not reading.unknown


@pytest.mark.parametrize(
    ("prompt", "values"),
    [
        (
            "a red ball bouncing over a green meadow at night, snow falling",
            {"count": "one", "colour": "red", "shape": "ball", "motion": "bouncing", "background": "meadow",
             "time": "night", "weather": "snow"},
        ),
        ("Fog!", {"weather": "fog"}),
        ("at sunset, over the ocean, it rains on three violet boxes going in circles",
         {"time": "dusk", "background": "sea", "weather": "rain", "count": "three", "colour": "purple",
          "shape": "square", "motion": "orbiting"}),
        ("the ball is blue, no, green", {"shape": "ball", "colour": "green"}),
    ],
)  # fmt: skip
def test_prompts_of_people_are_read(prompt: str, values: dict[str, str]) -> None:
    assert parse(prompt).values == values


def test_a_scene_in_words_is_read_as_itself() -> None:
    rng = random.Random(1)
    for _ in range(1500):
        values = {name: rng.choice(choices) for name, choices in ATTRIBUTES.items()}
        reading = parse(in_words(values))
        assert (reading.values, reading.unknown) == (values, ())


def test_words_that_mean_nothing_here_are_named() -> None:
    assert parse("a purple dragon by the lake").unknown == ("dragon", "lake")


def test_a_scene_refuses_what_the_world_cannot_show() -> None:
    with pytest.raises(ValueError, match="weather 'hail' is none of clear, rain, snow, fog"):
        scene(weather="hail")


def test_known_words_are_one_token_each_and_others_are_spelled() -> None:
    assert tokenizer().encode("Three crimson starfish").tokens == ["three", "crimson", "starfish", "</s>"]
    assert tokenizer().encode("dune buggy").tokens[-6:] == ["b", "##u", "##g", "##g", "##y", "</s>"]
    assert len(encode("")) == 1
    with pytest.raises(ValueError, match=f"{TEXT_LENGTH} at most"):
        encode("red " * TEXT_LENGTH)


def test_the_same_seed_gives_the_same_pictures_and_another_seed_others() -> None:
    first, again, other = (render(tracks_of(scene(), frames=2, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_longer_clip_begins_with_the_shorter_one() -> None:
    short, long = tracks_of(scene(), frames=4), tracks_of(scene(), frames=9)
    torch.testing.assert_close(long.frames(slice(4)).x, short.x)
    torch.testing.assert_close(render(long.frames(slice(2))), render(short.frames(slice(2))))


@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("following", MOTIONS)
def test_things_glide_over_into_another_motion(motion: str, following: str) -> None:
    tracks = tracks_of(scene(motion=motion, count="three"), scene(motion=following, count="three"), frames=40)
    sideways = (tracks.x.diff(dim=1) + WRAP / 2) % WRAP - WRAP / 2
    assert float(sideways.abs().max()) < 25
    assert float(tracks.y.diff(dim=1).abs().max()) < 25
    assert float(tracks.radius.diff(dim=1).abs().max()) < 6


def test_a_new_colour_keeps_the_place_and_a_new_background_fades_in() -> None:
    changed = tracks_of(scene(), scene(colour="blue", background="city"))
    same = tracks_of(scene(), scene())
    assert torch.equal(changed.x, same.x) and torch.equal(changed.y, same.y)
    city = changed.background[0, 8:, 3]
    assert (city.diff() > 0).all() and 0.1 < float(city[0]) < 0.4 and float(city[-1]) > 0.8


@pytest.mark.parametrize("colour", COLOURS_RGB)
@pytest.mark.parametrize("shape", ATTRIBUTES["shape"])
def test_the_thing_has_the_colour_that_was_asked_for(colour: str, shape: str) -> None:
    tracks = tracks_of(scene(colour=colour, shape=shape, motion="bouncing", background="space"), frames=2)
    picture = render(tracks)[0, -1]
    x, y = round(float(tracks.x[0, -1, 0])), round(float(tracks.y[0, -1, 0])) + 4
    seen = picture[:, y - 1 : y + 2, x - 1 : x + 2].mean((1, 2))
    assert int(seen.argmax()) == COLOURS_RGB[colour].index(1)


@pytest.mark.parametrize("count", ATTRIBUTES["count"])
def test_as_many_things_are_present_as_were_asked_for(count: str) -> None:
    presence = tracks_of(scene(count=count), frames=2).presence[0, -1]
    assert int((presence > 0.5).sum()) == 1 + ATTRIBUTES["count"].index(count)


def test_sideways_and_growing_are_what_they_are_called() -> None:
    left, right = (tracks_of(scene(motion=motion), frames=6).x.diff(dim=1) for motion in ("left", "right"))
    assert int((left[..., 0] < 0).sum()) >= 4 and int((right[..., 0] > 0).sum()) >= 4
    radius = tracks_of(scene(motion="growing"), frames=48).radius[0, :, 0]
    assert int((radius.diff() > 0).sum()) > 30


def test_every_place_time_and_weather_is_painted_within_range_and_unlike_the_others() -> None:
    places = [(b, t, w) for b in ATTRIBUTES["background"] for t in ("day", "night") for w in ATTRIBUTES["weather"]]
    labels = [scene(background=b, time=t, weather=w).labels() for b, t, w in places]
    pictures = render(simulate(one_hot_targets(torch.tensor(labels)[:, None]), torch.Generator().manual_seed(0)))[:, 0]
    assert pictures.shape == (len(places), 3, SIZE, SIZE)
    assert float(pictures.min()) >= 0 and float(pictures.max()) <= 1
    apart = torch.cdist(pictures.flatten(1)[None], pictures.flatten(1)[None])[0].fill_diagonal_(1e9)
    assert float(apart.min()) > 10


def test_cells_in_focus_are_those_that_a_thing_touches() -> None:
    shown = tracks_of(scene(count="three", motion="left"), frames=24)
    cells = focus(shown)
    x, y = shown.x % WRAP, shown.y
    for frame in range(24):
        for thing in range(3):
            column, row = int(x[0, frame, thing] // CELL), int(y[0, frame, thing] // CELL)
            assert column >= SIZE // CELL or cells[0, frame, row, column] == 1
    assert 0.1 < cells.mean() < 0.4
    nothing = tracks_of(scene(count="one", motion="bouncing"), frames=1)
    far = nothing.y[0, 0, 0] < SIZE / 2
    assert focus(nothing)[0, 0, -1 if far else 0].max() == 0


def test_the_judge_learns_a_handful_of_clips_by_heart() -> None:
    torch.manual_seed(0)
    batch = clean_batch(4, torch.Generator().manual_seed(0))
    judge, left = Judge(), iter(range(12))

    def batches() -> JudgeBatch | None:
        return batch if next(left, None) is not None else None

    assert train_judge(judge, batches, lambda: 0.0) == 12
    judge.train()
    right = torch.stack([scores.argmax(1) for scores in judge(augmented(batch).pictures)], 1) == batch.labels
    assert float(right.float().mean()) > 0.9
    assert set(accuracies(judge, batch)) == set(ATTRIBUTES)


class _SeesRed(Judge):
    def labels(self, pictures: torch.Tensor, batch: int = 64) -> torch.Tensor:
        """Of any window, colour 1 where the last picture is bright."""
        answers = torch.zeros(len(pictures), len(ATTRIBUTES), dtype=torch.int64)
        answers[:, 1] = pictures[:, -1].mean((1, 2, 3)) > 0.5
        return answers


def test_a_change_is_first_seen_with_the_chunk_in_which_the_judge_sees_it() -> None:
    pictures = torch.zeros(2, 40, 1, 1, 1)
    pictures[0, 24:] = 1.0
    wished = torch.ones(2, dtype=torch.int64)
    assert first_seen(_SeesRed(), pictures, "colour", wished, start=16, chunk=8).tolist() == [2, 4]
