"""All parts together, from a saved folder: the pictures of diffusers' `WanPipeline`, guidance and all."""

from pathlib import Path

import torch
from diffusers import UniPCMultistepScheduler, WanPipeline
from transformers import PreTrainedTokenizerFast
from wan_folders import Checkpoint, save_checkpoint
from wan_models import assert_near, noise

from streamsynth.models.wan.attention import FullAttention
from streamsynth.models.wan.prompts import load_prompt_encoder
from streamsynth.models.wan.schedule import guided, unipc_schedule
from streamsynth.models.wan.unipc import UniPcHistory, unipc_step
from streamsynth.models.wan.vae_weights import load_vae
from streamsynth.models.wan.weights import load_transformer

PROMPT, NEGATIVE = "a red ball\n over the   sea", "calm &amp;amp; blue"
FRAMES, STEPS, SHIFT, GUIDANCE = 3, 4, 3.0, 5.0


def reference_clip(checkpoint: Checkpoint, start: torch.Tensor) -> torch.Tensor:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=checkpoint.tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT)
    pipeline = WanPipeline(
        tokenizer, checkpoint.text_encoder, checkpoint.vae, scheduler, transformer=checkpoint.transformer
    )
    pipeline.set_progress_bar_config(disable=True)
    made: torch.Tensor = pipeline(
        prompt=PROMPT,
        negative_prompt=NEGATIVE,
        height=8 * start.shape[3],
        width=8 * start.shape[4],
        num_frames=1 + 4 * (FRAMES - 1),
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        latents=start.clone(),
        max_sequence_length=512,
        output_type="pt",
    ).frames
    return made


@torch.inference_mode()
def test_a_clip_from_a_saved_pipeline_is_that_of_the_reference(tmp_path: Path) -> None:
    start = noise(1, 3, FRAMES, 4, 6)
    expected = reference_clip(save_checkpoint(tmp_path), start)

    prompts = load_prompt_encoder(tmp_path / "text_encoder", tmp_path / "tokenizer")
    model, vae = load_transformer(tmp_path / "transformer"), load_vae(tmp_path / "vae")
    wanted, unwanted = (model.prompt_context(prompts.encode([text])) for text in (PROMPT, NEGATIVE))
    turn = model.rotary(torch.arange(FRAMES)[None], 4, 6)
    schedule, latents = unipc_schedule(STEPS, SHIFT), start
    history: UniPcHistory | None = None
    for step, timestep in enumerate(schedule.timesteps):
        told = torch.tensor([[timestep]])
        flows = [model(latents, told, context, turn, FullAttention()) for context in (wanted, unwanted)]
        latents, history = unipc_step(latents, guided(flows[0], flows[1], GUIDANCE), schedule, step, history)
    pictures = vae.decode_clip(latents)
    assert pictures.std() > 0.05
    assert_near((pictures.transpose(1, 2) + 1) / 2, expected)
