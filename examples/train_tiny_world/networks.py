"""The sizes of tiny-world, and its networks new, to be trained; they are the package's own modules."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.streaming import Step
from streamsynth.models.wan.text_encoder import TextEncoder, TextEncoderConfig
from streamsynth.models.wan.tiny_vae import TinyVae, TinyVaeConfig
from train_tiny_world.text_tokens import tokenizer

CONTEXT_CHUNKS = 2
"""Chunks that are remembered beside the one being made."""


@dataclass(frozen=True)
class Sizes:
    vae: TinyVaeConfig
    text: TextEncoderConfig
    transformer: WanConfig


def full_sizes() -> Sizes:
    """About 39 MB in float16; what a chunk takes is in the README."""
    return Sizes(
        vae=TinyVaeConfig(
            latent_channels=16,
            decoder_widths=(128, 64, 32),
            decoder_blocks=(2, 2, 1),
            encoder_width=64,
            encoder_blocks=2,
            growth=(2, 2),
            patch_size=2,
            first_pictures=4,
        ),
        text=TextEncoderConfig(
            vocab_size=tokenizer().get_vocab_size(), d_model=256, d_kv=64, d_ff=512, num_layers=3, num_heads=4
        ),
        transformer=WanConfig(
            num_attention_heads=6,
            attention_head_dim=64,
            in_channels=16,
            out_channels=16,
            text_dim=256,
            freq_dim=256,
            ffn_dim=1024,
            num_layers=7,
        ),
    )


def toy_sizes() -> Sizes:
    """Too small to learn anything: for trying out every step."""
    full = full_sizes()
    return Sizes(
        vae=replace(full.vae, decoder_widths=(16, 8, 8), encoder_width=8, encoder_blocks=1),
        text=replace(full.text, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2),
        transformer=replace(
            full.transformer, num_attention_heads=2, attention_head_dim=16, text_dim=32, ffn_dim=64, num_layers=2
        ),
    )


def new_transformer(config: WanConfig) -> WanTransformer:
    """The head begins at zero, and so do the gates of every block but for their table: the flow begins as nothing."""
    model = WanTransformer(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and not name.endswith("modulation"):
                nn.init.xavier_uniform_(weight)
            elif name.endswith("bias"):
                weight.zero_()
        model.time.to_layers.weight.mul_(0.1)
        model.head.weight.zero_()
        for block in model.blocks:
            block.modulation.normal_(0, config.hidden_size**-0.5)
    return model


def new_text_encoder(config: TextEncoderConfig) -> TextEncoder:
    """Attention is not scaled in this family: its queries begin small."""
    model = TextEncoder(config)
    with torch.no_grad():
        model.embedding.weight.normal_(0, 1)
        inner = config.num_heads * config.d_kv
        for layer in model.layers:
            layer.qkv.weight.normal_(0, config.d_model**-0.5)
            layer.qkv.weight[:inner].mul_(config.d_kv**-0.5)
            layer.out.weight.normal_(0, inner**-0.5)
            layer.distance.weight.normal_(0, 0.1)
            layer.gate_up.weight.normal_(0, config.d_model**-0.5)
            layer.down.weight.normal_(0, config.d_ff**-0.5)
    return model


def encode_pictures(vae: TinyVae, pictures: Tensor) -> Tensor:
    """(clips, frames, 3, height, width) from 0 to 1, whole clips, to (clips, frames / 4, channels, ...)."""
    return vae.encoder(pictures.transpose(1, 2), Step(vae.open_encoder().memory, first=True)).transpose(1, 2)


def decode_latents(vae: TinyVae, latents: Tensor) -> Tensor:
    """The other way; what is wrong beyond 0 and 1 is still there."""
    return vae.decoder(latents.transpose(1, 2), Step(vae.open_decoder().memory, first=True)).transpose(1, 2)


def as_settings(config: WanConfig | TextEncoderConfig | TinyVaeConfig) -> dict[str, object]:
    """What goes into `config.json`."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}
