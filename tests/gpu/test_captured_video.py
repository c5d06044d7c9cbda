"""Captured, fused passes of videos on the device against the plain loop there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import triton
from rollout_driver import open_video, pictures_of, run, settle, step
from torch import Tensor

from streamsynth.engine.kernels.tokens import add_and_norm, norm_parts, turn_pairs
from streamsynth.engine.rollout.engine import RolloutEngine, RolloutStream
from streamsynth.engine.rollout.window import WindowPolicy
from streamsynth.interactions.messages import Interaction, Kv
from streamsynth.models.wan import fused
from streamsynth.models.wan.attention import FullAttention
from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.denoisers import FewSteps
from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.random_weights import with_random_weights
from streamsynth.models.wan.schedule import few_step_schedule
from streamsynth.models.wan.streaming import StreamingDecoder
from streamsynth.models.wan.tiny_vae import TinyVae, TinyVaeConfig
from streamsynth.models.wan.vae import WanVae
from streamsynth.models.wan.vae_config import VaeConfig
from streamsynth.models.wan.video import WanVideo
from streamsynth.video import Size

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
SIZE = Size(width=128, height=64)
CONFIG = WanConfig(num_attention_heads=2, attention_head_dim=128, text_dim=64, freq_dim=64, ffn_dim=512, num_layers=3)
PAGE_TOKENS = 12  # Not a divisor of a frame's 32 tokens.
VIDEO = {"width": SIZE.width, "height": SIZE.height}


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


class Words:
    """Embeddings that differ by prompt."""

    def in_full(self, prompt: str, before: str | None, seed: int) -> str:
        return prompt

    def encode(self, prompts: Sequence[str]) -> Tensor:
        seeds = [int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "little") for prompt in prompts]
        drawn = [torch.randn(32, CONFIG.text_dim, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return torch.stack(drawn).to(DEVICE)


def transformer(dtype: torch.dtype) -> WanTransformer:
    """Every weight is random, norms and modulation too."""
    with torch.device("meta"):
        model = WanTransformer(CONFIG)
    model = with_random_weights(model, seed=1, dtype=dtype, device=DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(2)
    with torch.inference_mode():
        for name, weight in model.named_parameters():
            if weight.dim() == 1 or name.endswith("modulation"):
                weight.add_(torch.randn(weight.shape, generator=generator, device=DEVICE).to(dtype) * 0.1)
    return model


def tiny(dtype: torch.dtype) -> StreamingDecoder:
    with torch.device("meta"):
        vae = TinyVae(TinyVaeConfig(decoder_widths=(32, 16, 16, 16)))
    return with_random_weights(vae, dtype=dtype, device=DEVICE)


def full(dtype: torch.dtype) -> StreamingDecoder:
    with torch.device("meta"):
        vae = WanVae(VaeConfig(base_dim=16, num_res_blocks=1))
    return with_random_weights(vae, dtype=dtype, device=DEVICE)


def engine_of(
    dtype: torch.dtype, *, captured: bool, decoder: StreamingDecoder | None = None, quantised: bool = False
) -> RolloutEngine:
    steps = FewSteps(few_step_schedule([1000, 750, 500, 250], 5.0))
    window = WindowPolicy(frames=12, sink=3, chunk=3)
    model = WanVideo(transformer(dtype), Words(), decoder or tiny(dtype), steps, window, fps=16, fused=captured)
    if captured:
        model.capture_decoder([SIZE], max_rows=2)
    pages = 1 + 2 * window.frames * -(-model.frame_tokens(SIZE.width, SIZE.height) // PAGE_TOKENS)
    return RolloutEngine(
        model,
        pages=pages,
        page_tokens=PAGE_TOKENS,
        max_videos=2,
        quantised_pages=quantised,
        captured=[SIZE] if captured else (),
    )


def steer(stream: RolloutStream, event_id: str, prompt: str, kv: Kv, chunks: int = 0) -> None:
    stream.interact(Interaction(event_id, {"prompt": prompt}, transition_chunks=chunks, kv=kv))


def latents_of(stream: RolloutStream) -> Tensor:
    """Clean, of the kept frames: what all passes so far have added up to."""
    return torch.stack(list(stream.rollout.latents.values())).float()


def off(made: Tensor, expected: Tensor) -> float:
    return float((made.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_kernels_are_the_operations_that_they_stand_for(dtype: torch.dtype) -> None:
    bound = 2e-6 if dtype == torch.float32 else 4e-3
    generator = torch.Generator(DEVICE).manual_seed(0)

    def drawn(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE).to(kind)

    x, change = drawn(2, 21, 200), drawn(2, 21, 200)
    steps = drawn(6, 4, 200, kind=torch.float32)
    gate, scale, shift = steps[:, 1], steps[:, 2], steps[:, 3]  # Six groups of seven tokens.
    of_token = [each.repeat_interleave(7, 0).view(2, 21, 200) for each in (gate, scale, shift)]
    added = (x.float() + change.float() * of_token[0]).to(dtype)
    normed = F.layer_norm(added.float(), (200,), eps=1e-6) * (1 + of_token[1]) + of_token[2]
    given = x.clone()
    made = add_and_norm(given, change, gate, scale, shift, eps=1e-6, modulated=True)
    assert off(given, added) < bound and off(made, normed) < bound

    weights = drawn(2, 200)
    parts = norm_parts(torch.cat((x, change, x), -1), weights, 1e-6)
    for part, each, weight in zip(parts, (x, change), weights, strict=True):
        assert off(part, F.rms_norm(each.float(), (200,), weight.float(), 1e-6)) < bound

    turn = transformer(torch.float32).rotary(torch.arange(5, 8, device=DEVICE)[None], 2, 14)
    heads, buffer = drawn(2, 21, 3, 128), drawn(2, 30, 3, 128)
    turn_pairs(heads, turn.turns, buffer[:, -21:])
    assert off(buffer[:, -21:], turn.turn(heads)) < bound


@torch.inference_mode()
def test_a_fused_pass_is_the_plain_one_in_float32() -> None:
    """The product with its activation too: a GELU of the other kind would be off by 3e-4."""
    model = transformer(torch.float32)
    ours = fused.FusedTransformer(model)
    generator = torch.Generator(DEVICE).manual_seed(3)
    y = torch.randn(2, 40, CONFIG.hidden_size, generator=generator, device=DEVICE)
    block = model.each_block()[0].feed_forward
    assert off(fused._feed_forward(block, y), block(y)) < 2e-5
    for rows, steps in ((2, 1), (1, 3)):
        latents = torch.randn(rows, 16, 3, 8, 16, generator=generator, device=DEVICE)
        timesteps = 1000 * torch.rand(rows, steps, generator=generator, device=DEVICE)
        prompt = model.prompt_context(Words().encode("ab"[:rows]))
        positions = torch.arange(9, 12, device=DEVICE)[None]
        found = [
            each(latents, timesteps, prompt, each.rotary(positions, 8, 16), FullAttention()) for each in (model, ours)
        ]
        assert off(found[1], found[0]) < 1e-4


@pytest.mark.parametrize("quantised", [False, True], ids=["plain", "float8"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-3), (torch.bfloat16, 0.03)])
def test_captured_chunks_are_the_plain_loops_through_eviction_recache_blend_and_reset(
    dtype: torch.dtype, bound: float, quantised: bool
) -> None:
    """V03, V12. Of clean latents, in relative norm, after 13 chunks whose keys were made of each other."""
    found = []
    for captured in (False, True):
        engine = engine_of(dtype, captured=captured, quantised=quantised)
        stream = open_video(engine, "a", seed=5, **VIDEO)
        pictures = pictures_of(engine, stream, 6)
        steer(stream, "1", "b", Kv.RECACHE)
        pictures += pictures_of(engine, stream, 2)
        steer(stream, "2", "c", Kv.KEEP, chunks=2)
        pictures += pictures_of(engine, stream, 3)
        before = latents_of(stream)
        steer(stream, "3", "d", Kv.RESET)
        pictures += pictures_of(engine, stream, 2)
        found.append((before, latents_of(stream), np.concatenate(pictures)))
    assert off(found[1][0], found[0][0]) < bound
    assert off(found[1][1], found[0][1]) < bound
    levels = np.abs(found[1][2].astype(int) - found[0][2])
    assert levels.mean() < 100 * bound


@pytest.mark.parametrize("make", [tiny, full])
def test_a_video_beside_another_is_what_it_is_alone(make: type[StreamingDecoder]) -> None:
    """In float32; by pictures, so the captured decoders of one row and of two are heard of as well."""
    found = []
    for beside in (False, True):
        engine = engine_of(torch.float32, captured=True, decoder=make(torch.float32))
        stream = open_video(engine, "a", seed=3, **VIDEO)
        if not beside:
            found.append(np.concatenate(pictures_of(engine, stream, 6)))
            continue
        other = open_video(engine, "b", seed=4, **VIDEO)
        made = [run(engine, {stream: 3, other: 3})[stream]]
        other.close()
        made.append(np.concatenate(pictures_of(engine, stream, 3)))
        found.append(np.concatenate(made))
    assert np.abs(found[1].astype(int) - found[0]).max() <= 1


def test_nothing_is_captured_or_compiled_after_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(torch.bfloat16, captured=True)
    captures = engine.counters()["captures"]
    assert captures == 2 * (4 * 3 - 1)
    compiled: list[object] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **given: compiled.append(given["repr"]))
    first, second = open_video(engine, "a", **VIDEO), open_video(engine, "b", **VIDEO)
    run(engine, {first: 6, second: 6})
    steer(first, "1", "c", Kv.RECACHE)
    steer(second, "1", "d", Kv.RESET)
    run(engine, {first: 5, second: 5})
    second.close()
    pictures_of(engine, first, 2)
    assert engine.counters()["captures"] == captures and not compiled


def test_the_commit_is_launched_before_the_pictures_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a decode that takes the device a tenth of a second."""
    engine = engine_of(torch.bfloat16, captured=True)
    stream = open_video(engine, **VIDEO)
    pictures_of(engine, stream, 5)
    decode = engine.model.decode

    def slow(latents: Tensor, states: Sequence[Any]) -> Sequence[Tensor]:
        torch.cuda._sleep(200_000_000)
        return decode(latents, states)

    monkeypatch.setattr(engine.model, "decode", slow)
    while not any(len(emission.media) for emission in step(engine, [stream])[stream]):
        pass
    assert stream.rollout.chunk == 6
    settle(engine)
    counters = engine.counters()
    assert min(counters[f"{kind}_us"] for kind in ("denoise", "decode", "commit")) > 0


def test_pages_are_free_however_videos_end() -> None:
    engine = engine_of(torch.bfloat16, captured=True)
    for steps in range(24):
        first, second = open_video(engine, "a", **VIDEO), open_video(engine, "b", **VIDEO)
        for _ in range(steps):
            step(engine, [first, second])
        if steps % 3 == 0:
            steer(second, "1", "c", Kv.RECACHE)
        first.close()
        run(engine, {second: 1 + steps % 3})
        second.close()
        settle(engine)
        counters = engine.counters()
        assert counters["free_pages"] == counters["pages"] and counters["live"] == 0
