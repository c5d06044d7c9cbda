"""Those that make clips."""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderKLCogVideoX,
    AutoencoderKLHunyuanVideo,
    AutoencoderKLLTXVideo,
    AutoencoderKLWan,
    CogVideoXDDIMScheduler,
    CogVideoXPipeline,
    CogVideoXTransformer3DModel,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
)

from small_pipelines import texts


def wan() -> WanPipeline:
    return WanPipeline(
        tokenizer=texts.t5_tokenizer(),
        text_encoder=texts.umt5_encoder(),
        transformer=_wan_transformer(channels=16),
        vae=_wan_vae(),
        scheduler=UniPCMultistepScheduler(flow_shift=3.0, use_flow_sigmas=True, prediction_type="flow_prediction"),
    )


def wan_image_to_video() -> WanImageToVideoPipeline:
    """As Wan 2.2 has it: the picture is among the latents, no picture encoder."""
    return WanImageToVideoPipeline(
        tokenizer=texts.t5_tokenizer(),
        text_encoder=texts.umt5_encoder(),
        transformer=_wan_transformer(channels=36),
        vae=_wan_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        image_encoder=None,
        image_processor=None,
    )


def _wan_vae() -> AutoencoderKLWan:
    torch.manual_seed(0)
    return AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )


def _wan_transformer(channels: int) -> WanTransformer3DModel:
    torch.manual_seed(0)
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=channels,
        out_channels=16,
        text_dim=texts.WIDTH,
        freq_dim=256,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )


def ltx() -> LTXPipeline:
    torch.manual_seed(0)
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        num_layers=1,
        caption_channels=texts.WIDTH,
    )
    vae = AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
    )
    vae.use_framewise_encoding = vae.use_framewise_decoding = False
    return LTXPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=texts.t5_encoder(),
        tokenizer=texts.t5_tokenizer(),
        transformer=transformer,
    )


def hunyuan_video() -> HunyuanVideoPipeline:
    torch.manual_seed(0)
    transformer = HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        patch_size=1,
        text_embed_dim=texts.WIDTH,
        pooled_projection_dim=texts.WIDTH,
        rope_axes_dim=(2, 4, 4),
    )
    vae = AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4
    )
    return HunyuanVideoPipeline(
        text_encoder=texts.llama_encoder(),
        tokenizer=texts.llama_tokenizer(),
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=texts.clip_encoder(),
        tokenizer_2=texts.clip_tokenizer(),
    )


def cogvideox() -> CogVideoXPipeline:
    torch.manual_seed(0)
    transformer = CogVideoXTransformer3DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        time_embed_dim=2,
        text_embed_dim=texts.WIDTH,
        num_layers=1,
        sample_width=4,
        sample_height=4,
        sample_frames=9,
        patch_size=2,
    )
    vae = AutoencoderKLCogVideoX(
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        sample_height=32,
        sample_width=32,
    )
    return CogVideoXPipeline(
        tokenizer=texts.t5_tokenizer(),
        text_encoder=texts.t5_encoder(),
        vae=vae,
        transformer=transformer,
        scheduler=CogVideoXDDIMScheduler(),
    )
