"""Released and trained files to folders that load: names against diffusers' own converters, and whole round trips."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers, convert_wan_vae_to_diffusers
from torch import Tensor
from wan_models import (
    RESIDUAL_VAE,
    SMALL,
    WITH_IMAGE,
    assert_near,
    noise,
    our_vae,
    reference_transformer,
    reference_vae,
)

from streamsynth.cli import main
from streamsynth.errors import StreamSynthError
from streamsynth.models.wan.attention import FullAttention
from streamsynth.models.wan.convert import convert
from streamsynth.models.wan.original_names import text_encoder_name, transformer_name, vae_name
from streamsynth.models.wan.prompts import build_text_encoder, text_encoder_weights
from streamsynth.models.wan.text_encoder import TextEncoder, TextEncoderConfig
from streamsynth.models.wan.tiny_vae import TinyVaeConfig
from streamsynth.models.wan.tiny_vae_weights import load_tiny_vae
from streamsynth.models.wan.vae_config import WAN_2_2_VAE
from streamsynth.models.wan.vae_weights import load_vae
from streamsynth.models.wan.weights import load_transformer

RESIDUAL_PARTS = ("residual.0.gamma", "residual.2.weight", "residual.2.bias")
RESIDUAL_PARTS += ("residual.3.gamma", "residual.6.weight", "residual.6.bias")


def published_transformer(layers: int, *, image: bool = False) -> list[str]:
    """The names in `Wan2.1-T2V-1.3B`, or with `image` in `Wan2.1-FLF2V-14B`."""
    pairs = ["patch_embedding", "text_embedding.0", "text_embedding.2", "time_embedding.0", "time_embedding.2"]
    pairs += ["time_projection.1", "head.head"]
    names = ["head.modulation"]
    cross = ["q", "k", "v", "o", *(["k_img", "v_img"] if image else [])]
    norms = ["self_attn.norm_q", "self_attn.norm_k", "cross_attn.norm_q", "cross_attn.norm_k"]
    norms += ["cross_attn.norm_k_img"] if image else []
    for layer in range(layers):
        block = f"blocks.{layer}."
        names += [f"{block}modulation", *(f"{block}{norm}.weight" for norm in norms)]
        pairs += [f"{block}self_attn.{part}" for part in "qkvo"] + [f"{block}cross_attn.{part}" for part in cross]
        pairs += [f"{block}norm3", f"{block}ffn.0", f"{block}ffn.2"]
    if image:
        pairs += [f"img_emb.proj.{place}" for place in (0, 1, 3, 4)]
    return names + [f"{pair}.{kind}" for pair in pairs for kind in ("weight", "bias")]


def published_vae() -> list[str]:
    """The names in `Wan2.1_VAE.pth`."""
    names = []
    for side, list_name, shortcuts, resampled, in_time, length in (
        ("encoder", "downsamples", (3, 6), (2, 5, 8), (5, 8), 11),
        ("decoder", "upsamples", (4,), (3, 7, 11), (3, 7), 15),
    ):
        for place in range(length):
            layer = f"{side}.{list_name}.{place}."
            if place in resampled:
                names += [f"{layer}resample.1.weight", f"{layer}resample.1.bias"]
                names += [f"{layer}time_conv.{kind}" for kind in ("weight", "bias") if place in in_time]
                continue
            names += [layer + part for part in RESIDUAL_PARTS]
            names += [f"{layer}shortcut.{kind}" for kind in ("weight", "bias") if place in shortcuts]
        names += [f"{side}.middle.{place}.{part}" for place in (0, 2) for part in RESIDUAL_PARTS]
        names += [f"{side}.middle.1.norm.gamma", f"{side}.head.0.gamma"]
        pairs = [f"{side}.middle.1.to_qkv", f"{side}.middle.1.proj", f"{side}.conv1", f"{side}.head.2"]
        names += [f"{pair}.{kind}" for pair in pairs for kind in ("weight", "bias")]
    return names + [f"{pair}.{kind}" for pair in ("conv1", "conv2") for kind in ("weight", "bias")]


def meta_names(model: Any, **options: Any) -> set[str]:
    with torch.device("meta"):
        return set(model(**options).state_dict())


def test_every_published_name_of_the_transformer_becomes_the_references() -> None:
    sizes = {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}
    names = published_transformer(30)
    assert len(names) == 825
    made = [transformer_name(name) for name in names]
    assert made == list(convert_wan_transformer_to_diffusers(dict.fromkeys(names, torch.zeros(1))))
    assert set(made) == meta_names(WanTransformer3DModel, **sizes)


def test_every_published_name_of_the_image_branch_becomes_the_references() -> None:
    names = [*published_transformer(2, image=True), "img_emb.emb_pos"]
    sizes = {"num_layers": 2, "image_dim": 1280, "added_kv_proj_dim": 5120, "pos_embed_seq_len": 514}
    assert {transformer_name(name) for name in names} == meta_names(WanTransformer3DModel, **sizes)


def test_every_published_name_of_the_autoencoder_becomes_the_references() -> None:
    names = published_vae()
    assert len(names) == 194
    made = [vae_name(name, 4) for name in names]
    assert made == list(convert_wan_vae_to_diffusers(dict.fromkeys(names, torch.zeros(1))))
    assert set(made) == meta_names(AutoencoderKLWan)


def test_every_published_name_of_the_text_encoder_becomes_transformers() -> None:
    """`models_t5_umt5-xxl-enc-bf16.pth` has 242."""
    parts = ["norm1", *(f"attn.{part}" for part in "qkvo"), "norm2", "ffn.gate.0", "ffn.fc1", "ffn.fc2"]
    parts.append("pos_embedding.embedding")
    names = ["token_embedding.weight", "norm.weight"]
    names += [f"blocks.{layer}.{part}.weight" for layer in range(24) for part in parts]
    assert len(names) == 242
    with torch.device("meta"):
        expected = set(TextEncoder(TextEncoderConfig()).state_dict())
        given = {text_encoder_name(name): torch.empty(1, 1) for name in names}
        assert set(text_encoder_weights(given, TextEncoderConfig())) == expected


# The way back: files as they are released are made from models of the reference.
TO_RELEASED = (
    (r"condition_embedder\.text_embedder\.linear_1", "text_embedding.0"),
    (r"condition_embedder\.text_embedder\.linear_2", "text_embedding.2"),
    (r"condition_embedder\.time_embedder\.linear_1", "time_embedding.0"),
    (r"condition_embedder\.time_embedder\.linear_2", "time_embedding.2"),
    (r"condition_embedder\.time_proj", "time_projection.1"),
    (r"condition_embedder\.image_embedder\.norm1", "img_emb.proj.0"),
    (r"condition_embedder\.image_embedder\.ff\.net\.0\.proj", "img_emb.proj.1"),
    (r"condition_embedder\.image_embedder\.ff\.net\.2", "img_emb.proj.3"),
    (r"condition_embedder\.image_embedder\.norm2", "img_emb.proj.4"),
    (r"condition_embedder\.image_embedder\.pos_embed", "img_emb.emb_pos"),
    (r"^scale_shift_table", "head.modulation"),
    (r"scale_shift_table", "modulation"),
    (r"proj_out", "head.head"),
    (r"norm2", "norm3"),
    (r"ffn\.net\.0\.proj", "ffn.0"),
    (r"ffn\.net\.2", "ffn.2"),
    (r"attn1", "self_attn"),
    (r"attn2", "cross_attn"),
    (r"to_out\.0", "o"),
    (r"\.to_([qkv])\.", r".\1."),
    (r"add_([kv])_proj", r"\1_img"),
    (r"norm_added_k", "norm_k_img"),
)
VAE_22_TO_RELEASED = (
    (r"^quant_conv", "conv1"),
    (r"^post_quant_conv", "conv2"),
    (r"conv_in", "conv1"),
    (r"norm_out", "head.0"),
    (r"conv_out", "head.2"),
    (r"mid_block\.attentions\.0", "middle.1"),
    (r"mid_block\.resnets\.0", "middle.0"),
    (r"mid_block\.resnets\.1", "middle.2"),
    (r"(down|up)_blocks\.(\d)\.resnets\.(\d)", r"\1samples.\2.\1samples.\3"),
    (r"(down)_blocks\.(\d)\.downsampler", r"\1samples.\2.\1samples.1"),
    (r"(up)_blocks\.(\d)\.upsampler", r"\1samples.\2.\1samples.2"),
    (r"(s\.\d|middle\.[02])\.norm1", r"\1.residual.0"),
    (r"(s\.\d|middle\.[02])\.conv1", r"\1.residual.2"),
    (r"(s\.\d|middle\.[02])\.norm2", r"\1.residual.3"),
    (r"(s\.\d|middle\.[02])\.conv2", r"\1.residual.6"),
    (r"conv_shortcut", "shortcut"),
)


def released(tensors: dict[str, Tensor], rules: tuple[tuple[str, str], ...]) -> dict[str, Tensor]:
    made = {}
    for name, tensor in tensors.items():
        for pattern, to in rules:
            name = re.sub(pattern, to, name)
        made[name] = tensor.clone()
    return made


@torch.inference_mode()
@pytest.mark.parametrize("options", [SMALL, WITH_IMAGE, WITH_IMAGE | {"pos_embed_seq_len": 10}])
def test_a_converted_transformer_is_the_model_it_was_made_from(options: dict[str, Any], tmp_path: Path) -> None:
    """As Self-Forcing stores it: an averaged copy beside the other, names prefixed by its modules and by FSDP."""
    reference = reference_transformer(options)
    original = released(dict(reference.state_dict()), TO_RELEASED)
    averaged = {f"model._fsdp_wrapped_module.{name}": tensor for name, tensor in original.items()}
    other = {f"model.{name}": torch.zeros_like(tensor) for name, tensor in original.items()}
    torch.save({"generator": other, "generator_ema": averaged}, tmp_path / "dmd.pt")
    done = convert(tmp_path / "dmd.pt", tmp_path / "out", head_dim=20)
    assert (done.part, done.wrapper, done.tensors) == ("transformer", "generator_ema", len(original))
    model = load_transformer(tmp_path / "out")
    for name, weight in reference.named_parameters():
        if name.endswith("to_out.0.weight"):
            assert any(torch.equal(weight, ours) for ours in model.parameters())
    if options is SMALL:
        latents, text = noise(1, 4, 2, 4, 4), noise(1, 7, 24, seed=2)
        expected = reference(latents, torch.tensor([500.0]), text).sample
        turn = model.rotary(torch.arange(2)[None], 4, 4)
        prompt = model.prompt_context(text)
        assert_near(model(latents, torch.tensor([[500.0]]), prompt, turn, FullAttention()), expected)
    convert(tmp_path / "dmd.pt", tmp_path / "plain", weights="generator", head_dim=20)
    assert not any(weight.any() for weight in load_transformer(tmp_path / "plain").parameters())


@torch.inference_mode()
def test_a_converted_autoencoder_is_the_model_it_was_made_from(tmp_path: Path) -> None:
    """Wan 2.2's; statistics of latents are told by their channels."""
    statistics = {"latents_mean": list(WAN_2_2_VAE.latents_mean), "latents_std": list(WAN_2_2_VAE.latents_std)}
    reference = reference_vae(RESIDUAL_VAE | {"z_dim": 48} | statistics)
    torch.save(released(dict(reference.state_dict()), VAE_22_TO_RELEASED), tmp_path / "Wan2.2_VAE.pth")
    assert convert(tmp_path / "Wan2.2_VAE.pth", tmp_path / "vae").part == "vae"
    latents = noise(1, 48, 2, 2, 2)
    assert_near(load_vae(tmp_path / "vae").decode_clip(latents), our_vae(reference).decode_clip(latents), 1e-6)
    reference.save_pretrained(tmp_path / "diffusers")
    assert_near(load_vae(tmp_path / "diffusers").decode_clip(latents), our_vae(reference).decode_clip(latents), 1e-6)


def test_the_command_converts_a_tiny_autoencoder_and_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from test_wan_tiny_vae import random_file

    torch.save(random_file(TinyVaeConfig()), tmp_path / "taew2_1.pth")
    with pytest.raises(SystemExit) as ended:
        main(["models", "convert", str(tmp_path / "taew2_1.pth"), str(tmp_path / "tiny")])
    assert not ended.value.code
    assert "tiny: tiny_vae, 128 tensors, 45.3 MB" in capsys.readouterr().out.replace("\n", "")
    assert load_tiny_vae(tmp_path / "tiny").layout.channels == 16
    assert [path.name for path in sorted((tmp_path / "tiny").iterdir())] == [
        "config.json",
        "diffusion_pytorch_model.safetensors",
    ]


def test_a_sharded_pipeline_folder_loads(tmp_path: Path) -> None:
    reference = reference_transformer(SMALL)
    reference.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert load_transformer(tmp_path).config.num_layers == SMALL["num_layers"]
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"sink_size": 3}))
    with pytest.raises(StreamSynthError, match="unknown sink_size"):
        load_transformer(tmp_path)


class Pickled:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("a file that runs code when it is read",))


def test_a_file_that_is_not_tensors_alone_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    good = released(dict(reference_transformer(SMALL).state_dict()), TO_RELEASED)
    files: dict[str, tuple[Any, str]] = {
        "code.pt": (Pickled(), "cannot be read as tensors alone"),
        "list.pt": ([torch.zeros(1)], "not named tensors"),
        "other.pt": ({"encoder.weight": torch.zeros(1)}, "no names of Wan's .* but encoder.weight"),
        "wrapped.pt": ({"critic": good}, "weights is None; it must be given, as none is known of critic"),
        "more.pt": (good | {"lora.weight": torch.zeros(1)}, "unknown .* lora.weight"),
        "step.pt": (good | {"step": 3}, "step are no tensors"),
    }
    for name, (content, message) in files.items():
        with (tmp_path / name).open("wb") as file:
            torch.save(content, file, pickle_module=pickle)
        with pytest.raises(StreamSynthError, match=message):
            convert(tmp_path / name, tmp_path / "out", head_dim=20)
    for arguments, message in (
        ({"head_dim": 128}, r"head_dim is 128; it must be a divisor of the hidden size \(60\)"),
        ({"weights": "generator"}, "weights is 'generator'; it must be one that the file has: it has none"),
    ):
        torch.save(good, tmp_path / "good.pt")
        with pytest.raises(StreamSynthError, match=message):
            convert(tmp_path / "good.pt", tmp_path / "out", **arguments)
    with pytest.raises(StreamSynthError, match="a file that is there"):
        convert(tmp_path / "none.pt", tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    (tmp_path / "out").mkdir()
    with pytest.raises(StreamSynthError, match="a folder that is not there yet"):
        convert(tmp_path / "good.pt", tmp_path / "out", head_dim=20)


@torch.inference_mode()
def test_a_converted_text_encoder_loads(tmp_path: Path) -> None:
    config = TextEncoderConfig(vocab_size=20, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=3)
    shapes = {"norm1": (16,), "norm2": (16,), "ffn.gate.0": (24, 16), "ffn.fc1": (24, 16), "ffn.fc2": (16, 24)}
    shapes |= {f"attn.{part}": (12, 16) for part in "qkv"} | {"attn.o": (16, 12), "pos_embedding.embedding": (32, 3)}
    file = {f"blocks.{layer}.{name}.weight": noise(*shape) for layer in range(2) for name, shape in shapes.items()}
    file |= {"token_embedding.weight": noise(20, 16), "norm.weight": noise(16)}
    torch.save(file, tmp_path / "models_t5.pth")
    assert convert(tmp_path / "models_t5.pth", tmp_path / "text_encoder").part == "text_encoder"
    written = json.loads((tmp_path / "text_encoder" / "config.json").read_text())
    assert TextEncoderConfig.from_hf(written) == config
    from streamsynth.models.llama.weights import read_tensors

    encoder = build_text_encoder(config, read_tensors(tmp_path / "text_encoder"), "the folder")
    assert encoder(torch.tensor([[1, 2, 3]]), torch.tensor([3])).isfinite().all()
