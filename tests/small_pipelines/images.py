"""Those that make images."""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderDC,
    AutoencoderKL,
    AutoencoderKLQwenImage,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SanaPipeline,
    SanaTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)

from small_pipelines import texts


def _vae(latent_channels: int, **fields: object) -> AutoencoderKL:
    torch.manual_seed(0)
    return AutoencoderKL(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=latent_channels,
        layers_per_block=1,
        norm_num_groups=4,
        **fields,
    )


def sdxl() -> StableDiffusionXLPipeline:
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(16, 32),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 1),
        projection_class_embeddings_input_dim=6 * 8 + texts.WIDTH,
        cross_attention_dim=2 * texts.WIDTH,
        norm_num_groups=4,
    )
    return StableDiffusionXLPipeline(
        vae=_vae(4),
        text_encoder=texts.clip_encoder(),
        text_encoder_2=texts.clip_encoder(projected=True),
        tokenizer=texts.clip_tokenizer(),
        tokenizer_2=texts.clip_tokenizer(),
        unet=unet,
        scheduler=EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        add_watermarker=False,
    )


def sdxl_image_to_image() -> StableDiffusionXLImg2ImgPipeline:
    """The size of what it makes is that of what it is given."""
    return StableDiffusionXLImg2ImgPipeline(**sdxl().components, add_watermarker=False)


def sd3() -> StableDiffusion3Pipeline:
    torch.manual_seed(0)
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=texts.WIDTH,
        caption_projection_dim=32,
        pooled_projection_dim=2 * texts.WIDTH,
        pos_embed_max_size=16,
    )
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(4, shift_factor=0.06, scaling_factor=1.5),
        text_encoder=texts.clip_encoder(projected=True),
        tokenizer=texts.clip_tokenizer(),
        text_encoder_2=texts.clip_encoder(projected=True),
        tokenizer_2=texts.clip_tokenizer(),
        text_encoder_3=texts.t5_encoder(),
        tokenizer_3=texts.t5_tokenizer(),
    )


def flux() -> FluxPipeline:
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=texts.WIDTH,
        pooled_projection_dim=texts.WIDTH,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_vae(4, shift_factor=0.06, scaling_factor=1.5),
        text_encoder=texts.clip_encoder(),
        tokenizer=texts.clip_tokenizer(),
        text_encoder_2=texts.t5_encoder(),
        tokenizer_2=texts.t5_tokenizer(),
        transformer=transformer,
    )


def qwen_image() -> QwenImagePipeline:
    torch.manual_seed(0)
    transformer = QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=texts.WIDTH,
        axes_dims_rope=(8, 4, 4),
    )
    vae = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    return QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae,
        text_encoder=texts.qwen_vl_encoder(),
        tokenizer=texts.qwen_tokenizer(),
        transformer=transformer,
    )


def z_image() -> ZImagePipeline:
    torch.manual_seed(0)
    transformer = ZImageTransformer2DModel(
        in_channels=16,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=texts.WIDTH,
        axes_dims=[8, 4, 4],
        axes_lens=[256, 32, 32],
    )
    # Its padding tokens are made by torch.empty.
    for name in ("x_pad_token", "cap_pad_token"):
        torch.nn.init.normal_(getattr(transformer, name), std=0.02)
    return ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_vae(16, shift_factor=0.1, scaling_factor=0.4),
        text_encoder=texts.qwen3_encoder(),
        tokenizer=texts.qwen_tokenizer(),
        transformer=transformer,
    )


def pixart() -> PixArtSigmaPipeline:
    torch.manual_seed(0)
    transformer = PixArtTransformer2DModel(
        sample_size=8,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=3,
        caption_channels=texts.WIDTH,
        cross_attention_dim=24,
        in_channels=4,
        out_channels=8,
        use_additional_conditions=False,
    )
    return PixArtSigmaPipeline(
        tokenizer=texts.t5_tokenizer(),
        text_encoder=texts.t5_encoder(),
        vae=_vae(4),
        transformer=transformer,
        scheduler=DPMSolverMultistepScheduler(),
    )


def sana() -> SanaPipeline:
    torch.manual_seed(0)
    transformer = SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=texts.WIDTH,
        sample_size=2,
    )
    vae = AutoencoderDC(
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=[1, 1],
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    )
    return SanaPipeline(
        tokenizer=texts.gemma_tokenizer(),
        text_encoder=texts.gemma_encoder(),
        vae=vae,
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
