"""Every step of the tiny-world recipe: what chunks see in training is what they see when they come in turn."""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from train_tiny_world.autoencoder_training import (
    AutoencoderSettings,
    AutoencoderTraining,
    normalise_latents,
    picture_loss,
)
from train_tiny_world.checkpoints import load_networks, save_networks
from train_tiny_world.chunked_attention import SlidingAttention, TeacherForcedAttention
from train_tiny_world.clips import CHUNK_FRAMES, random_script
from train_tiny_world.few_steps import Distillation, FewStepSettings, Networks, step_levels
from train_tiny_world.flow_training import Context, FlowSettings, FlowTraining, LoneVelocity, Velocity
from train_tiny_world.judge import Judge, save_judge
from train_tiny_world.latent_bank import LatentBank
from train_tiny_world.networks import (
    CONTEXT_CHUNKS,
    decode_latents,
    encode_pictures,
    full_sizes,
    new_text_encoder,
    new_transformer,
    toy_sizes,
)
from train_tiny_world.package import package
from train_tiny_world.picture_pool import Pictures
from train_tiny_world.rollout import World, embed, roll_out, show
from train_tiny_world.train import TRAINED, Run
from train_tiny_world.word_training import WordTraining

from streamsynth.engine.rollout.engine import RolloutEngine
from streamsynth.engine.rollout.rollout import Rollout
from streamsynth.engine.rollout.warm_up import pages_of_videos
from streamsynth.engine.stream import Emission
from streamsynth.interactions.messages import Interaction, Kv
from streamsynth.models.tiny_world.engine import load_world
from streamsynth.models.tiny_world.pipeline import SIZES
from streamsynth.models.tiny_world.reading import parse
from streamsynth.models.tiny_world.vocabulary import ATTRIBUTES
from streamsynth.models.wan.attention import BlockCausalAttention
from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.rotary import Rotary
from streamsynth.models.wan.tiny_vae import TinyVae
from streamsynth.video import VideoRequest

CPU = torch.device("cpu")
CHUNKS, SIZE = 4, 4


@pytest.fixture
def transformer() -> WanTransformer:
    torch.manual_seed(0)
    model = new_transformer(toy_sizes().transformer)
    torch.nn.init.normal_(model.head.weight, 0, 0.2)
    return model


def clean_clip(transformer: WanTransformer, clips: int = 2) -> torch.Tensor:
    return torch.randn(clips, CHUNKS, transformer.config.in_channels, CHUNK_FRAMES, SIZE, SIZE)


def context_of(transformer: WanTransformer, clean: torch.Tensor) -> Context:
    clips = len(clean)
    text = torch.randn(clips, 1, CHUNKS, 5, transformer.config.text_dim).expand(-1, 2, -1, -1, -1)
    zeros = torch.zeros(clips, CHUNKS)
    return Context(
        clean, levels=zeros, text=text, read=zeros, counts=zeros + 1, alone=torch.zeros(clips, dtype=torch.bool)
    )


@torch.no_grad()
def test_a_noisy_chunk_sees_in_training_what_it_sees_when_chunks_come_in_turn(transformer: WanTransformer) -> None:
    clean = clean_clip(transformer)
    noisy, context = torch.randn_like(clean), context_of(transformer, clean)
    levels = torch.rand(len(clean), CHUNKS)
    together = Velocity(transformer, CHUNKS, SIZE, CPU, compiled=False)(context, noisy, levels)
    attention = SlidingAttention(transformer.config.num_layers, CONTEXT_CHUNKS)
    for chunk in range(CHUNKS):
        positions = torch.arange(CHUNK_FRAMES)[None] + chunk * CHUNK_FRAMES
        rotary = transformer.rotary(positions, SIZE, SIZE)
        prompt = transformer.prompt_context(context.text[:, 1, chunk])
        told = levels[:, chunk, None] * 1000
        alone = transformer(noisy[:, chunk], told, prompt, rotary, attention)
        torch.testing.assert_close(alone, together[:, chunk], atol=1e-5, rtol=1e-4)
        attention.committing = True
        transformer(clean[:, chunk], torch.zeros_like(told), prompt, rotary, attention)
        attention.committing = False


@torch.no_grad()
def test_a_chunk_that_is_shown_no_context_is_what_a_first_chunk_is(transformer: WanTransformer) -> None:
    """Three ways to the same: hidden context, a pass of lone chunks, and a rollout's first chunk."""
    clean = clean_clip(transformer)
    noisy, levels = torch.randn_like(clean), torch.rand(len(clean), CHUNKS)
    context = replace(context_of(transformer, clean), alone=torch.tensor([True, False]))
    together = Velocity(transformer, CHUNKS, SIZE, CPU, compiled=False)(context, noisy, levels)
    lone = LoneVelocity(transformer, SIZE, CPU, compiled=False)(context, noisy, levels)
    torch.testing.assert_close(together[0], lone[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together[1, 0], lone[1, 0], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(together[1, 1], lone[1, 1], atol=1e-3)


@torch.no_grad()
def test_the_clean_chunks_of_training_are_the_package_s_block_causal_window() -> None:
    heads, dim, tokens = 2, 8, CHUNK_FRAMES * 3
    q, k, v = torch.randn(3, 2 * CHUNKS, tokens, heads, dim).unbind(0)
    still = Rotary(torch.ones(1, 1, 1, dim // 2, dtype=torch.complex64))
    forced = TeacherForcedAttention(chunks=CHUNKS, context=CONTEXT_CHUNKS)
    forced.show(1)
    rows = forced.attend(0, q, k, v, still)[:CHUNKS]
    whole = BlockCausalAttention(
        frames=CHUNKS * CHUNK_FRAMES,
        frame_tokens=3,
        chunk_frames=CHUNK_FRAMES,
        window_frames=(CONTEXT_CHUNKS + 1) * CHUNK_FRAMES,
    )
    clean = (each[:CHUNKS].flatten(0, 1)[None] for each in (q, k, v))
    torch.testing.assert_close(rows.flatten(0, 1), whole.attend(0, *clean, still)[0])


@pytest.fixture
def bank() -> LatentBank:
    torch.manual_seed(0)
    made = LatentBank(TinyVae(toy_sizes().vae), 3, 2, 0, CPU)
    made.add(2)
    return made


def test_a_bank_keeps_the_newest_clips_with_their_prompts_and_changes(bank: LatentBank) -> None:
    bank.add(2)
    clips = bank.draw(5)
    assert bank.filled == 3
    assert clips.latents.shape == (5, 2, 16, CHUNK_FRAMES, 16, 16)
    assert clips.words.tokens.shape[:2] == (5, 2)
    assert ((clips.weights > 0).float().sum(1) == 2 - clips.switch).all()


def test_training_lowers_the_error_and_averages_the_weights(bank: LatentBank) -> None:
    torch.manual_seed(0)
    sizes = toy_sizes()
    transformer, encoder = new_transformer(sizes.transformer), new_text_encoder(sizes.text)
    settings = FlowSettings(learning_rate=3e-3, warmup_steps=1)
    training = FlowTraining(transformer, encoder, settings, Velocity(transformer, 2, 16, CPU, compiled=False))
    clips = bank.draw(2)
    losses = [float(training.step(clips, 0)) for _ in range(12)]
    assert losses[-1] < 0.98 * losses[0]
    before = training.weights[0].clone()
    training.swap_average()
    assert not torch.equal(before, training.weights[0])
    training.swap_average()
    assert torch.equal(before, training.weights[0])


def test_a_chunk_whose_context_knows_of_a_change_to_come_does_not_count(bank: LatentBank) -> None:
    sizes = toy_sizes()
    transformer, encoder = new_transformer(sizes.transformer), new_text_encoder(sizes.text)
    settings = FlowSettings(recached=1, alone=0, silent=0)
    training = FlowTraining(transformer, encoder, settings, Velocity(transformer, 2, 16, CPU, compiled=False))
    drawn = bank.draw(1)
    clips = replace(drawn, weights=torch.tensor([[0.0, 1.0]]), switch=torch.tensor([1]))
    context = training.conditions(clips)
    assert context.counts.tolist() == [[0, 1]]
    torch.testing.assert_close(context.text[0, 0, 0], context.text[0, 1, 1])


def test_a_student_that_is_its_teacher_already_draws_the_teacher_s_lines(bank: LatentBank) -> None:
    """With one teacher step for one of the student, and no guidance, there is nothing to learn."""
    torch.manual_seed(0)
    sizes = toy_sizes()
    transformer, encoder = new_transformer(sizes.transformer), new_text_encoder(sizes.text)
    torch.nn.init.normal_(transformer.head.weight, 0, 0.2)
    settings = FewStepSettings(teacher_steps=1, guidance=1.0)

    def velocity(model: WanTransformer) -> Velocity:
        return Velocity(model, 2, 16, CPU, compiled=False)

    student = Networks(transformer, encoder)
    distillation = Distillation(student, student.copy(), settings, velocity, 0)
    assert float(distillation.step(bank.draw(2), 0.5)) < 1e-8


def test_the_levels_of_a_few_steps_fall_from_noise_to_nothing() -> None:
    sigmas = step_levels(3, 3.0).sigmas
    assert sigmas[0] == 1 and sigmas[-1] == 0 and len(sigmas) == 4
    assert all(now > then for now, then in pairwise(sigmas))


def test_the_autoencoder_learns_and_its_latents_can_be_normalised() -> None:
    torch.manual_seed(0)
    vae = TinyVae(toy_sizes().vae)
    training = AutoencoderTraining(vae, AutoencoderSettings(learning_rate=5e-3, warmup_steps=1))
    pictures = torch.rand(1, 8, 3, 1, 1).expand(-1, -1, -1, 32, 32).contiguous()
    shown = Pictures(pictures, torch.zeros(1, 8, 4, 4))
    losses = [float(training.step(shown, 0)["fidelity"]) for _ in range(15)]
    assert losses[-1] < 0.8 * losses[0]
    with torch.no_grad():
        before = decode_latents(vae, encode_pictures(vae, pictures))
        normalise_latents(vae, pictures)
        latents = encode_pictures(vae, pictures).transpose(1, 2).transpose(0, 1).flatten(1)
        assert torch.allclose(latents.std(1), torch.ones(16), atol=1e-3)
        assert (
            decode_latents(vae, latents.unflatten(1, (1, 2, 4, 4)).transpose(0, 1).transpose(1, 2)).shape
            == before.shape
        )


def test_what_is_wrong_with_a_thing_weighs_more_than_the_same_beside_it() -> None:
    settings = AutoencoderSettings(focus=1.5)
    focus = torch.zeros(1, 2, 2, 2)
    focus[..., 0, 0] = 1
    wished = Pictures(torch.zeros(1, 2, 3, 16, 16), focus)
    on_it, beside = (torch.zeros(1, 2, 3, 16, 16) for _ in range(2))
    on_it[..., :8, :8], beside[..., 8:, 8:] = 0.1, 0.1
    assert picture_loss(on_it, wished, settings) > 2 * picture_loss(beside, wished, settings)
    training = FlowTraining(
        (transformer := new_transformer(toy_sizes().transformer)),
        new_text_encoder(toy_sizes().text),
        FlowSettings(focus=3),
        LoneVelocity(transformer, 16, CPU, compiled=False),
    )
    cells = torch.zeros(1, 1, 2, 16, 16)
    cells[..., :8] = 1
    right = torch.zeros(1, 1, 16, 2, 16, 16)
    left_wrong, right_wrong = right.clone(), right.clone()
    left_wrong[..., :8], right_wrong[..., 8:] = 1, 1
    errors = [
        float(training.learn((wrong * transformer.head.bias.sum().add(1)), right, cells, torch.ones(1, 1), 0))
        for wrong in (left_wrong, right_wrong)
    ]
    # Weights of 4 and 1, of mean 2.5.
    assert errors == pytest.approx([0.8, 0.2], rel=0.01)


def test_a_rollout_is_the_same_for_the_same_seed_and_becomes_pictures(transformer: WanTransformer) -> None:
    sizes = toy_sizes()
    world = World(TinyVae(sizes.vae), new_text_encoder(sizes.text), transformer, step_levels(2, 3.0))
    texts = [embed(world, ["a red ball", "snow"])] * 2
    first, again, other = (roll_out(world, texts, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    pictures = show(world, first)
    assert pictures.shape == (2, 16, 3, 128, 128)
    assert float(pictures.min()) >= 0 and float(pictures.max()) <= 1


def test_published_networks_come_back_in_half_precision(tmp_path: Path) -> None:
    sizes = toy_sizes()
    vae, other = TinyVae(sizes.vae), TinyVae(sizes.vae)
    save_networks(tmp_path, {"vae": vae}, name="world")
    assert load_networks(tmp_path, {"vae": other}, name="world")
    for mine, theirs in zip(vae.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.half().float(), theirs)
    assert not load_networks(tmp_path / "none", {"vae": other}, name="world")


def test_all_networks_together_take_less_than_40_megabytes_in_half_precision() -> None:
    sizes = full_sizes()
    with torch.device("meta"):
        networks = (TinyVae(sizes.vae), new_text_encoder(sizes.text), new_transformer(sizes.transformer))
    assert sum(2 * weight.numel() for network in networks for weight in network.parameters()) < 40e6


def test_the_text_encoder_learns_to_read_prompts() -> None:
    torch.manual_seed(0)
    training = WordTraining(new_text_encoder(full_sizes().text), prompts=256, seed=0)
    before = float(training.step(64, 0))
    for _ in range(20):
        training.step(64, 0)
    assert float(training.step(256, 1)) > before + 0.2


def test_a_bank_comes_back_as_it_was(bank: LatentBank, tmp_path: Path) -> None:
    bank.add(2)
    bank.save(tmp_path / "bank.pt")
    again = LatentBank(TinyVae(toy_sizes().vae), 3, 2, 0, CPU)
    again.load(tmp_path / "bank.pt")
    assert again.filled == bank.filled
    again.add(1)
    assert again.filled == 3 and again.draw(3).latents.isfinite().all()


def test_a_call_that_goes_on_keeps_the_judge_that_the_first_call_trained(tmp_path: Path) -> None:
    """Where to start counts for the first call alone: a later one is given the same arguments."""

    def call(**given: object) -> Run:
        nothing = dict.fromkeys(("publish", "end", "begin", "start", *TRAINED), None)
        usual = {"out": tmp_path / "out", "seconds": 1.0, "toy": True, "plain": True, "seed": 0}
        return Run(argparse.Namespace(**(nothing | usual | given)))

    elsewhere = call(out=tmp_path / "elsewhere")
    save_judge(Judge(), elsewhere.judge_file)
    elsewhere.publish()
    first = call(start=elsewhere.publish_to)
    assert first.judge_file.read_bytes() == elsewhere.judge_file.read_bytes()
    save_judge(Judge(), first.judge_file)
    own = first.judge_file.read_bytes()
    first.save("words", 3.0)
    later = call(start=elsewhere.publish_to)
    assert (later.stage, later.spent, later.judge_file.read_bytes()) == ("words", 3.0, own)


def test_scripts_say_at_least_what_changes() -> None:
    rng = random.Random(0)
    for _ in range(300):
        script = random_script(5, rng)
        first, second = script.scenes
        changed = {name for name in ATTRIBUTES if getattr(first, name) != getattr(second, name)}
        said = parse(script.prompts[1]).values
        assert changed <= said.keys()
        assert all(getattr(second, name) == value for name, value in said.items())
        assert script.weights[0] == 0 and (not changed or script.weights[-1] > 0)


@torch.no_grad()
def test_the_package_makes_of_the_packaged_folder_the_pictures_that_the_recipe_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten chunks, so that the window slides, with a change under way: as `roll_out` makes them from the same noise."""
    torch.manual_seed(0)
    sizes = toy_sizes()
    vae, encoder, transformer = TinyVae(sizes.vae), new_text_encoder(sizes.text), new_transformer(sizes.transformer)
    torch.nn.init.normal_(transformer.head.weight, 0, 0.2)
    for network in (vae, encoder, transformer):
        network.half().float()
    package(vae, encoder, transformer, sizes, tmp_path)
    world = World(vae, encoder, transformer, FewStepSettings().shipped_schedule)
    prompts = tuple(f"two red balls moving left over the sea by day, {sky}" for sky in ("clear sky", "snow"))
    first, second = (embed(world, [prompt]) for prompt in prompts)
    latents = roll_out(world, [first] * 6 + [second] * 4, seed=3)
    expected = show(world, latents)[0].mul(255).round().byte().permute(0, 2, 3, 1).numpy()

    model = load_world(tmp_path)
    generator = torch.Generator().manual_seed(3)
    monkeypatch.setattr(Rollout, "noise", lambda _rollout, _step, shape: torch.randn(*shape, generator=generator))
    pages = 1 + pages_of_videos(model, SIZES, 64, 1)
    engine = RolloutEngine(model, pages=pages, page_tokens=64, max_videos=1)
    [size] = SIZES
    request = VideoRequest(prompt=prompts[0], width=size.width, height=size.height, num_frames=len(expected), seed=0)
    stream = engine.open(request.to_wire())
    made: list[npt.NDArray[np.uint8]] = []
    while sum(map(len, made)) < len(expected):
        if stream.rollout.chunk == 6 and stream.rollout.plan is None:
            stream.interact(Interaction("e", {"prompt": prompts[1]}, transition_chunks=0, kv=Kv.KEEP))
        made += [emission.media for _, emission in engine.step([stream]).made if isinstance(emission, Emission)]
    assert np.abs(np.concatenate(made).astype(int) - expected).max() <= 1
