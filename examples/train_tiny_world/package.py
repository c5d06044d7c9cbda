"""Packs what `train` published as a folder that the package loads: diffusers' and transformers' layouts, float16.

transformer/   config.json, diffusion_pytorch_model.safetensors   names of `WanTransformer3DModel`
text_encoder/  config.json, model.safetensors                     names of `UMT5EncoderModel`
tokenizer/     tokenizer.json
vae/           config.json, diffusion_pytorch_model.safetensors   the package's own names
world.json     how it is sampled
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.text_encoder import TextEncoder
from streamsynth.models.wan.tiny_vae import TinyVae
from train_tiny_world.checkpoints import load_networks
from train_tiny_world.clips import CHUNK_FRAMES
from train_tiny_world.few_steps import FewStepSettings
from train_tiny_world.motion import FRAME_RATE, SIZE
from train_tiny_world.networks import CONTEXT_CHUNKS, Sizes, as_settings, full_sizes
from train_tiny_world.text_tokens import TEXT_LENGTH, tokenizer

_TOP = {
    "patches": "patch_embedding",
    "time.first": "condition_embedder.time_embedder.linear_1",
    "time.second": "condition_embedder.time_embedder.linear_2",
    "time.to_layers": "condition_embedder.time_proj",
    "text_in": "condition_embedder.text_embedder.linear_1",
    "text_out": "condition_embedder.text_embedder.linear_2",
    "head": "proj_out",
}
_BLOCK = {
    "self_attention.out": "attn1.to_out.0",
    "self_attention.norm_q": "attn1.norm_q",
    "self_attention.norm_k": "attn1.norm_k",
    "cross_attention.q": "attn2.to_q",
    "cross_attention.norm_q": "attn2.norm_q",
    "cross_attention.norm_k": "attn2.norm_k",
    "cross_attention.out": "attn2.to_out.0",
    "cross_norm": "norm2",
    "feed_forward.up": "ffn.net.0.proj",
    "feed_forward.down": "ffn.net.2",
}
_BLOCK_FUSED = {
    "self_attention.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "cross_attention.kv": ("attn2.to_k", "attn2.to_v"),
}
_LAYER = {
    "attention_norm.weight": "layer.0.layer_norm.weight",
    "out.weight": "layer.0.SelfAttention.o.weight",
    "distance.weight": "layer.0.SelfAttention.relative_attention_bias.weight",
    "forward_norm.weight": "layer.1.layer_norm.weight",
    "down.weight": "layer.1.DenseReluDense.wo.weight",
}
_LAYER_FUSED = {
    "qkv.weight": tuple(f"layer.0.SelfAttention.{part}.weight" for part in "qkv"),
    "gate_up.weight": ("layer.1.DenseReluDense.wi_0.weight", "layer.1.DenseReluDense.wi_1.weight"),
}


def diffusers_tensors(transformer: WanTransformer) -> dict[str, Tensor]:
    patch = transformer.config.patch_size
    tensors = {}
    for name, tensor in transformer.state_dict().items():
        if name == "modulation":
            tensors["scale_shift_table"] = tensor[None]
        elif name.startswith("blocks."):
            _, layer, rest = name.split(".", 2)
            tensors |= {f"blocks.{layer}.{key}": value for key, value in _block_tensors(rest, tensor).items()}
        else:
            stem, kind = name.rsplit(".", 1)
            shaped = tensor.unflatten(1, (-1, *patch)) if name == "patches.weight" else tensor
            tensors[f"{_TOP[stem]}.{kind}"] = shaped
    return tensors


def _block_tensors(name: str, tensor: Tensor) -> dict[str, Tensor]:
    if name == "modulation":
        return {"scale_shift_table": tensor[None]}
    stem, kind = name.rsplit(".", 1)
    if stem in _BLOCK_FUSED:
        parts = _BLOCK_FUSED[stem]
        return {f"{part}.{kind}": value for part, value in zip(parts, tensor.chunk(len(parts)), strict=True)}
    return {f"{_BLOCK[stem]}.{kind}": tensor}


def transformers_tensors(encoder: TextEncoder) -> dict[str, Tensor]:
    tensors = {}
    for name, tensor in encoder.state_dict().items():
        if not name.startswith("layers."):
            ours = {"embedding.weight": "shared.weight", "norm.weight": "encoder.final_layer_norm.weight"}
            tensors[ours[name]] = tensor
            continue
        _, layer, rest = name.split(".", 2)
        target = f"encoder.block.{layer}."
        if rest in _LAYER_FUSED:
            parts = _LAYER_FUSED[rest]
            tensors |= {target + part: value for part, value in zip(parts, tensor.chunk(len(parts)), strict=True)}
        else:
            tensors[target + _LAYER[rest]] = tensor
    return tensors


def package(vae: TinyVae, encoder: TextEncoder, transformer: WanTransformer, sizes: Sizes, folder: Path) -> None:
    wan = as_settings(sizes.transformer) | {
        "_class_name": "WanTransformer3DModel",
        "qk_norm": "rms_norm_across_heads",
        "cross_attn_norm": True,
    }
    text = as_settings(sizes.text) | {"model_type": "umt5", "feed_forward_proj": "gated-gelu"}
    _save(folder / "transformer", "diffusion_pytorch_model", diffusers_tensors(transformer), wan)
    _save(folder / "text_encoder", "model", transformers_tensors(encoder), text)
    _save(folder / "vae", "diffusion_pytorch_model", vae.state_dict(), as_settings(sizes.vae))
    (folder / "tokenizer").mkdir(exist_ok=True)
    tokenizer().save(str(folder / "tokenizer" / "tokenizer.json"))
    sampling = {
        "fps": FRAME_RATE,
        "width": SIZE,
        "height": SIZE,
        "text_length": TEXT_LENGTH,
        "chunk_frames": CHUNK_FRAMES,
        "window_frames": CHUNK_FRAMES * (CONTEXT_CHUNKS + 1),
        "sink_frames": 0,
        "pictures_per_frame": sizes.vae.layout.pictures,
        "sigmas": list(FewStepSettings().shipped_schedule.sigmas),
        "sampler": "euler",
    }
    (folder / "world.json").write_text(json.dumps(sampling, indent=1) + "\n")


def _save(folder: Path, stem: str, tensors: Mapping[str, Tensor], config: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    halves = {name: tensor.detach().to(torch.float16).cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(halves, folder / f"{stem}.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path, help="folder that train wrote with --publish")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    sizes = full_sizes()
    vae, encoder, transformer = TinyVae(sizes.vae), TextEncoder(sizes.text), WanTransformer(sizes.transformer)
    networks = {"vae": vae, "encoder": encoder, "transformer": transformer}
    if not load_networks(arguments.published, networks, name="world"):
        parser.error(f"no world-*.safetensors in {arguments.published}")
    package(vae, encoder, transformer, sizes, arguments.out)


if __name__ == "__main__":
    main()
