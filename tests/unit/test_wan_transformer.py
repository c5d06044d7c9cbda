"""The Wan transformer against diffusers', and its chunked passes against dense ones."""

import pytest
import torch
from wan_models import SMALL, WITH_IMAGE, assert_near, noise, ours, reference_transformer

from streamsynth.errors import StreamSynthError
from streamsynth.models.wan.attention import BlockCausalAttention, ContextAttention, FullAttention
from streamsynth.models.wan.config import WAN_1_3B, WanConfig
from streamsynth.models.wan.model import PromptContext, WanTransformer
from streamsynth.models.wan.rotary import rotary

FRAMES, HEIGHT, WIDTH, TEXT = 6, 6, 8, 7
FRAME_TOKENS = (HEIGHT // 2) * (WIDTH // 2)


@pytest.fixture(scope="module")
def model() -> WanTransformer:
    return ours(reference_transformer(SMALL))


def positions(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count)[None]


@torch.inference_mode()
@pytest.mark.parametrize("options", [{}, {"patch_size": (1, 1, 2)}, {"attention_head_dim": 12, "out_channels": None}])
def test_flow_is_that_of_the_reference(options: dict[str, object]) -> None:
    reference = reference_transformer(SMALL | options)
    model = ours(reference)
    latents, text, steps = noise(2, 4, FRAMES, HEIGHT, WIDTH), noise(2, TEXT, 24, seed=2), torch.tensor([999.0, 12.0])
    expected = reference(latents, steps, text).sample
    turn = model.rotary(positions(0, FRAMES), HEIGHT, WIDTH)
    assert_near(model(latents, steps[:, None], model.prompt_context(text), turn, FullAttention()), expected)


@torch.inference_mode()
def test_each_frame_may_have_a_time_step_of_its_own(model: WanTransformer) -> None:
    """The reference takes them by the token (Wan 2.2 TI2V)."""
    reference = reference_transformer(SMALL)
    latents, text = noise(2, 4, FRAMES, HEIGHT, WIDTH), noise(2, TEXT, 24, seed=2)
    steps = torch.tensor([[0.0, 0, 0, 937.5, 937.5, 937.5], [1000, 833.3, 625, 3, 2, 1]])
    expected = reference(latents, steps.repeat_interleave(FRAME_TOKENS, 1), text).sample
    turn = model.rotary(positions(0, FRAMES), HEIGHT, WIDTH)
    assert_near(model(latents, steps, model.prompt_context(text), turn, FullAttention()), expected)


@torch.inference_mode()
@pytest.mark.parametrize("pair", [False, True])
def test_the_image_branch_is_that_of_the_reference(pair: bool) -> None:
    """Checkpoints for a first image, and for a first and a last one; the reference fixes the text at 512 tokens."""
    reference = reference_transformer(WITH_IMAGE | ({"pos_embed_seq_len": 10} if pair else {}))
    model = ours(reference)
    latents, text = noise(2, 9, 2, HEIGHT, WIDTH), noise(2, 512, 24, seed=2)
    image = noise(4 if pair else 2, 5, 32, seed=3)
    steps = torch.tensor([700.0, 20.0])
    expected = reference(latents, steps, text, encoder_hidden_states_image=image).sample
    prompt = model.prompt_context(text, image)
    turn = model.rotary(positions(0, 2), HEIGHT, WIDTH)
    assert_near(model(latents, steps[:, None], prompt, turn, FullAttention()), expected)
    with pytest.raises(StreamSynthError, match="image"):
        model.prompt_context(text)


@torch.inference_mode()
@pytest.mark.parametrize("chunks", [[3, 3], [1, 2, 3], [1] * 6, [6]])
def test_chunks_over_kept_context_equal_a_dense_pass_with_the_block_causal_mask(
    model: WanTransformer, chunks: list[int]
) -> None:
    """Every chunk is passed twice: as noise that leaves nothing behind, and as what is kept."""
    size = chunks[-1]
    latents, text = noise(2, 4, FRAMES, HEIGHT, WIDTH), noise(2, TEXT, 24, seed=2)
    steps = torch.tensor([[10.0, 20, 30, 40, 50, 60], [0, 0, 0, 999, 500, 5]])
    prompt, context = model.prompt_context(text), ContextAttention(SMALL["num_layers"])
    made, start = [], 0
    for count in chunks:
        span = slice(start, start + count)
        turn = model.rotary(positions(start, count), HEIGHT, WIDTH)
        context.committing = False
        model(noise(2, 4, count, HEIGHT, WIDTH, seed=start), steps[:, span], prompt, turn, context)
        context.committing = True
        made.append(model(latents[:, :, span], steps[:, span], prompt, turn, context))
        start += count
    mask = BlockCausalAttention(frames=FRAMES, frame_tokens=FRAME_TOKENS, chunk_frames=size)
    if len(set(chunks)) > 1:
        ends = torch.tensor(chunks).cumsum(0).repeat_interleave(torch.tensor(chunks))
        mask.mask = (
            torch.arange(FRAMES).repeat_interleave(FRAME_TOKENS)[None] < ends.repeat_interleave(FRAME_TOKENS)[:, None]
        )
    turn = model.rotary(positions(0, FRAMES), HEIGHT, WIDTH)
    assert_near(torch.cat(made, 2), model(latents, steps, prompt, turn, mask), 1e-5)


@torch.inference_mode()
def test_a_window_in_the_mask_hides_the_middle_and_keeps_the_sink(model: WanTransformer) -> None:
    """A change in a frame outside the window and the sink changes nothing in a single layer."""
    single = ours(reference_transformer(SMALL | {"num_layers": 1}))
    latents, text, steps = noise(1, 4, FRAMES, HEIGHT, WIDTH), noise(1, TEXT, 24, seed=2), torch.full((1, 1), 9.0)
    prompt, turn = single.prompt_context(text), single.rotary(positions(0, FRAMES), HEIGHT, WIDTH)
    mask = BlockCausalAttention(
        frames=FRAMES, frame_tokens=FRAME_TOKENS, chunk_frames=2, window_frames=2, sink_frames=1
    )
    before = single(latents, steps, prompt, turn, mask)[:, :, 4:]
    for frame, seen in ((0, True), (1, False), (3, False), (4, True)):
        changed = latents.clone()
        changed[:, :, frame] += 1
        assert torch.equal(single(changed, steps, prompt, turn, mask)[:, :, 4:], before) != seen


@torch.inference_mode()
def test_rows_beside_each_other_are_as_if_alone(model: WanTransformer) -> None:
    """Two sessions with prompts, time steps and positions of their own."""
    latents, steps = noise(2, 4, 3, HEIGHT, WIDTH), torch.tensor([[5.0], [900.0]])
    prompts = [model.prompt_context(noise(1, TEXT, 24, seed=seed)) for seed in (2, 3)]
    turns = [model.rotary(positions(first, 3), HEIGHT, WIDTH) for first in (0, 9)]
    both = model.rotary(torch.cat([positions(0, 3), positions(9, 3)]), HEIGHT, WIDTH)
    together = model(latents, steps, PromptContext.stack(prompts), both, FullAttention())
    for row in range(2):
        alone = model(latents[row : row + 1], steps[row : row + 1], prompts[row], turns[row], FullAttention())
        assert_near(together[row : row + 1], alone, 1e-5)


def test_attention_depends_on_how_far_apart_frames_are_and_not_on_where_they_stand() -> None:
    """V11: angles are right also at position 10^9, where float32 would be off by whole turns."""
    q, k = noise(1, 4, 2, 44).double(), noise(1, 4, 2, 44, seed=2).double()
    near, far = (rotary(torch.tensor([[start, start + 3]]), 1, 2, 44) for start in (0, 1_000_000_000))
    products = [torch.einsum("rqhd,rkhd->rhqk", turn.turn(q.float()), turn.turn(k.float())) for turn in (near, far)]
    assert_near(products[1], products[0], 1e-5)


def test_a_size_that_is_not_whole_patches_is_refused(model: WanTransformer) -> None:
    with pytest.raises(StreamSynthError, match=r"height is 7; it must be a multiple of 2"):
        model.rotary(positions(0, 1), 7, 8)


@pytest.mark.parametrize(
    ("setting", "value"), [("qk_norm", None), ("cross_attn_norm", False), ("patch_size", (2, 2, 2)), ("num_layers", 0)]
)
def test_an_architecture_that_is_not_built_here_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(StreamSynthError, match=setting):
        WanConfig.from_hf({setting: value})
    with pytest.raises(StreamSynthError, match="window_size"):
        WanConfig.from_hf({"window_size": (-1, -1)})


def test_the_named_sizes_are_those_of_the_published_model() -> None:
    with torch.device("meta"):
        count = sum(weight.numel() for weight in WanTransformer(WAN_1_3B).parameters())
    assert count == 1_418_996_800


def test_a_weight_too_many_or_too_few_is_named() -> None:
    reference = reference_transformer(SMALL)
    tensors = reference.state_dict()
    from streamsynth.models.wan.weights import build_transformer

    config = WanConfig.from_hf(dict(reference.config))
    with pytest.raises(StreamSynthError, match=r"unknown blocks.9.norm2.weight"):
        build_transformer(config, tensors | {"blocks.9.norm2.weight": torch.zeros(1)}, "it")
    del tensors["blocks.1.attn2.to_k.bias"]
    with pytest.raises(StreamSynthError, match=r"missing blocks.1.cross_attention.kv.bias"):
        build_transformer(config, tensors, "it")
