"""What a chunk takes on this machine, with random weights: the sizes were chosen by this table."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from streamsynth.models.wan.config import WanConfig
from streamsynth.models.wan.tiny_vae import TinyVae, TinyVaeConfig
from train_tiny_world.chunked_attention import SlidingAttention
from train_tiny_world.clips import CHUNK_FRAMES, CHUNK_PICTURES
from train_tiny_world.motion import FRAME_RATE
from train_tiny_world.networks import CONTEXT_CHUNKS, full_sizes, new_transformer
from train_tiny_world.rollout import LATENT_SIZE
from train_tiny_world.text_tokens import TEXT_LENGTH

_MEDIA_MS = 1000 * CHUNK_PICTURES / FRAME_RATE


def _milliseconds(work: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats + 2):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return 1e3 * median(taken[2:])


@torch.inference_mode()
def forward_ms(config: WanConfig, repeats: int) -> float:
    """One pass over a chunk, with a full context."""
    model = new_transformer(config).eval()
    attention = SlidingAttention(config.num_layers, CONTEXT_CHUNKS)
    prompt = model.prompt_context(torch.randn(1, TEXT_LENGTH, config.text_dim))
    latents = torch.randn(1, config.in_channels, CHUNK_FRAMES, LATENT_SIZE, LATENT_SIZE)
    rotary = model.rotary(torch.arange(CHUNK_FRAMES)[None], LATENT_SIZE, LATENT_SIZE)

    def run() -> None:
        model(latents, torch.full((1, 1), 500.0), prompt, rotary, attention)

    attention.committing = True
    for _ in range(CONTEXT_CHUNKS):
        run()
    attention.committing = False
    return _milliseconds(run, repeats)


@torch.inference_mode()
def decode_ms(config: TinyVaeConfig, repeats: int) -> float:
    vae = TinyVae(config).eval().to(memory_format=torch.channels_last)
    state = vae.open_decoder()
    latents = torch.randn(1, config.latent_channels, CHUNK_FRAMES, LATENT_SIZE, LATENT_SIZE)
    return _milliseconds(lambda: vae.decode(latents, [state]), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = full_sizes()
    decoders = [
        sizes.vae,
        replace(sizes.vae, decoder_blocks=(2, 2, 0)),
        replace(sizes.vae, decoder_widths=(96, 48, 24)),
    ]
    table = Table(title=f"{arguments.threads} threads, a chunk of {CHUNK_PICTURES} pictures is {_MEDIA_MS:.0f} ms")
    for column in ("transformer", "forward ms", "decoder", "decode ms", "2 + 1 forwards", "3 + 1", "4 + 1"):
        table.add_column(column)
    decoded = {config: decode_ms(config, arguments.repeats) for config in decoders}
    for layers, heads, inner in ((7, 6, 1024), (6, 6, 1280), (8, 6, 1024), (8, 5, 1280)):
        config = replace(sizes.transformer, num_layers=layers, num_attention_heads=heads, ffn_dim=inner)
        forward = forward_ms(config, arguments.repeats)
        for decoder, decode in decoded.items():
            shares = [f"{(passes * forward + decode) / _MEDIA_MS:.0%}" for passes in (3, 4, 5)]
            name = f"{layers} layers of {config.hidden_size}, {inner}"
            blocks = f"{decoder.decoder_widths} x {decoder.decoder_blocks[:3]}"
            table.add_row(name, f"{forward:.0f}", blocks, f"{decode:.0f}", *shares)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
