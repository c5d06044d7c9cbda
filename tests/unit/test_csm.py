"""The CSM talker against transformers' own, at small random sizes, through pages and batches."""

import pytest
import torch
from talker_batch import GREEDY, PAGE_SIZE, Batch, prompt
from transformers import CsmConfig as HfConfig
from transformers import CsmForConditionalGeneration

from streamsynth.engine.attention import PagedAttention, RowSpan
from streamsynth.engine.kv.pages import PageId
from streamsynth.engine.passage import Context
from streamsynth.engine.runner import Drawing, FrameGang
from streamsynth.engine.sampler import SamplingParams
from streamsynth.models.csm.config import CsmConfig
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.csm.weights import build_talker

CODEBOOKS = 4
VOCABULARY = 40


@pytest.fixture(scope="module")
def reference() -> CsmForConditionalGeneration:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # At these sizes a second thread only waits.
    depth = {
        "num_codebooks": CODEBOOKS,
        "vocab_size": VOCABULARY,
        "backbone_hidden_size": 64,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": CODEBOOKS + 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    config = HfConfig(
        num_codebooks=CODEBOOKS,
        vocab_size=VOCABULARY,
        text_vocab_size=60,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        pad_token_id=None,
        bos_token_id=None,
        codebook_pad_token_id=39,
        codebook_eos_token_id=0,
        audio_token_id=58,
        audio_eos_token_id=59,
        depth_decoder_config=depth,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    )
    model = CsmForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.08)
        # Sharp heads: the best token then leads by far more than float32 rounding.
        model.lm_head.weight.mul_(40)
        model.depth_decoder.codebooks_head.weight.mul_(40)
    model.backbone_model.embed_tokens.embed_audio_tokens.weight = model.depth_decoder.model.embed_tokens.weight
    return model


@pytest.fixture(scope="module")
def talker(reference: CsmForConditionalGeneration) -> CsmTalker:
    tensors = {
        name: tensor.clone() for name, tensor in reference.state_dict().items() if not name.startswith("codec_model")
    }
    return build_talker(CsmConfig.from_hf(reference.config.to_dict()), tensors, "reference")


@torch.inference_mode()
def reference_frames(
    model: CsmForConditionalGeneration, ids: list[int], frames: int, behind: torch.Tensor | None = None
) -> tuple[torch.Tensor, float]:
    """Greedy frames by plain recomputation, without any cache, and the smallest lead of a best token over the next.

    `behind` (1, length, width) stands before the prompt, embedded.
    """
    embedded = model.embed_text_tokens(torch.tensor([ids]))
    if behind is not None:
        embedded = torch.cat((behind, embedded), 1)
    drawn, smallest = [], float("inf")
    for _ in range(frames):
        hidden = model.backbone_model(inputs_embeds=embedded, use_cache=False).last_hidden_state[:, -1]
        codes = []
        logits = model.lm_head(hidden)
        for codebook in range(CODEBOOKS):
            if codebook:
                tokens = torch.tensor([[0, *codes]])
                out = model.depth_decoder(
                    input_ids=tokens, backbone_last_hidden_state=hidden, use_cache=False, return_dict=True
                )
                logits = out.logits[:, -1]
            best = logits.topk(2).values[0]
            smallest = min(smallest, float(best[0] - best[1]))
            codes.append(int(logits.argmax()))
        drawn.append(codes)
        frame = model.backbone_model.embed_tokens(torch.tensor([[codes]]))
        embedded = torch.cat((embedded, frame.view(1, 1, -1)), 1)
    return torch.tensor(drawn), smallest


def test_greedy_frames_equal_the_reference_over_200_steps(
    reference: CsmForConditionalGeneration, talker: CsmTalker
) -> None:
    expected, lead = reference_frames(reference, [3, 14, 15, 9, 26], 200)
    assert lead > 1e-2, "the check needs best tokens that lead by far more than rounding (1e-4)"
    batch = Batch(talker)
    gang = batch.join([3, 14, 15, 9, 26])
    while len(batch.frames[gang]) < 200:
        batch.step()
    assert torch.equal(batch.leave(gang), expected)


def test_a_mixed_batch_that_joins_and_leaves_draws_what_each_draws_alone(
    reference: CsmForConditionalGeneration, talker: CsmTalker
) -> None:
    texts = [[1, 2, 3], [7] * 23, [50, 40, 30, 20, 10], [5, 6]]
    expected = [reference_frames(reference, ids, 40)[0] for ids in texts]
    batch = Batch(talker)
    gangs = []
    for ids in texts:
        gangs.append(batch.join(ids))
        for _ in range(7):
            batch.step()
    early = batch.leave(gangs.pop(1))
    assert torch.equal(early, expected.pop(1)[: len(early)])
    while any(len(frames) < 40 for frames in batch.frames.values()):
        batch.step()
    for gang, frames in zip(gangs, expected, strict=True):
        assert torch.equal(batch.leave(gang)[:40], frames)


def test_a_preempted_request_goes_on_as_if_nothing_had_happened(talker: CsmTalker) -> None:
    drawing = Drawing(first=SamplingParams(seed=11, top_k=20), rest=SamplingParams(seed=11))
    alone, disturbed = Batch(talker), Batch(talker)
    first, second = alone.join([4, 5, 6], drawing=drawing), disturbed.join([4, 5, 6], drawing=drawing)
    for number in range(30):
        alone.step()
        if number % 11 == 5:
            disturbed.planner.release(second)
        disturbed.step()
        while len(disturbed.frames[second]) < len(alone.frames[first]):
            disturbed.step()
    assert torch.equal(alone.leave(first), disturbed.leave(second))


def test_guidance_runs_two_rows_as_one_request(talker: CsmTalker) -> None:
    """Scale 1 is the conditional row alone; another scale is another voice."""

    def frames(*prompts: list[int], scale: float) -> torch.Tensor:
        batch = Batch(talker)
        drawing = Drawing(first=GREEDY.first, rest=GREEDY.rest, scale=scale)
        gang = batch.join(*prompts, drawing=drawing)
        while len(batch.frames[gang]) < 20:
            batch.step()
        return batch.leave(gang)

    lone = frames([8, 9, 10], scale=1.0)
    assert torch.equal(frames([8, 9, 10], [1, 2], scale=1.0), lone)
    assert not torch.equal(frames([8, 9, 10], [1, 2], scale=3.0), lone)


SAID, GOES_ON = [3, 14, 15], [9, 26, 5]


@torch.inference_mode()
def reference_context(model: CsmForConditionalGeneration, frames: torch.Tensor) -> torch.Tensor:
    """SAID and its frames, as transformers merges what `CsmProcessor` writes: text, sound, end of sound."""
    config = model.config
    ids = torch.tensor([[*SAID, *[config.audio_token_id] * len(frames), config.audio_eos_token_id]])
    embedded = model.embed_text_tokens(ids)
    embedded[ids == config.audio_token_id] = model.backbone_model.embed_tokens(frames[None])[0]
    end = torch.full((1, 1, CODEBOOKS), config.codebook_eos_token_id)
    embedded[ids == config.audio_eos_token_id] = model.backbone_model.embed_tokens(end)[0]
    return embedded


def chain(talker: CsmTalker, frames: torch.Tensor) -> torch.Tensor:
    end = talker.feedback(torch.full((1, CODEBOOKS), talker.config.eos_code))
    said = Context(positions=100, row_positions=200, end=end.unbind()).of(
        prompt(SAID), talker.feedback(frames).unbind()
    )
    assert said is not None
    return said


def test_a_sentence_behind_another_is_drawn_as_the_reference_draws_it(
    reference: CsmForConditionalGeneration, talker: CsmTalker
) -> None:
    """Frame for frame, beside a request that has nothing before it."""
    said, _ = reference_frames(reference, SAID, 30)
    context = reference_context(reference, said)
    expected, lead = reference_frames(reference, GOES_ON, 40, context)
    assert lead > 1e-2, "the check needs best tokens that lead by far more than rounding (1e-4)"
    alone, _ = reference_frames(reference, GOES_ON, 40)
    assert not torch.equal(expected, alone)
    batch = Batch(talker)
    behind = FrameGang.of([torch.cat((chain(talker, said), prompt(GOES_ON)))], GREEDY, PAGE_SIZE)
    batch.frames[behind] = []
    lone = batch.join(GOES_ON)
    assert torch.equal(batch.draw(behind, 40), expected)
    assert torch.equal(batch.draw(lone, 40), alone)


def test_logits_behind_another_sentence_equal_the_reference(
    reference: CsmForConditionalGeneration, talker: CsmTalker
) -> None:
    """Of the first codebook, at every position of the chain as one sequence, computed in pages and in parts."""
    said, _ = reference_frames(reference, SAID, 30)
    inputs = torch.cat((chain(talker, said), prompt(GOES_ON)))
    with torch.inference_mode():
        text = reference.embed_text_tokens(torch.tensor([GOES_ON]))
        embedded = torch.cat((reference_context(reference, said), text), 1)
        expected = reference(inputs_embeds=embedded, use_cache=False).logits[0]
        memory, pages = Batch(talker).memory, range(1, 1 + -(-len(inputs) // PAGE_SIZE))
        for start in range(0, len(inputs), 13):
            part = inputs[start : start + 13]
            attention = PagedAttention(memory, [RowSpan(start, len(part), [*map(PageId, pages)])], torch.device("cpu"))
            logits = talker.first_head(talker.trunk(talker.embed(part), attention))
            torch.testing.assert_close(logits, expected[start : start + 13], atol=1e-4, rtol=1e-5)


def test_weights_with_a_missing_or_unknown_name_are_refused(reference: CsmForConditionalGeneration) -> None:
    tensors = {name: tensor for name, tensor in reference.state_dict().items() if not name.startswith("codec_model")}
    del tensors["backbone_model.layers.1.mlp.down_proj.weight"]
    with pytest.raises(Exception, match=r"missing backbone\.layers\.1\.feed_forward\.down\.weight"):
        build_talker(CsmConfig.from_hf(reference.config.to_dict()), tensors, "folder")
