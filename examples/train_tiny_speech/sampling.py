"""Speaks a batch of prompts with guidance, through plain transformers modules: the talker's voice in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import CsmForConditionalGeneration, DynamicCache

from train_tiny_speech.text_tokens import UNCONDITIONAL


@dataclass(frozen=True)
class Sampling:
    temperature: float = 0.5
    depth_temperature: float = 0.5
    top_k: int = 50
    guidance: float = 1.5
    max_frames: int = 320

    def pick(self, logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
        kept = logits.topk(self.top_k)
        chosen = torch.multinomial((kept.values / temperature).softmax(-1), 1, generator=generator)
        return kept.indices.gather(-1, chosen)[:, 0]


@torch.inference_mode()
def speak(
    talker: CsmForConditionalGeneration, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int
) -> list[NDArray[np.int16]]:
    """Codes [frames, codebooks] of each prompt. The second half of the rows carries the unconditional prompts."""
    generator = torch.Generator().manual_seed(seed)
    count = len(prompts)
    rows = [*prompts, *([UNCONDITIONAL] * count)]
    length = max(map(len, rows))
    tokens, seen = torch.zeros(2, len(rows), length, dtype=torch.int64)
    for i, row in enumerate(rows):
        tokens[i, length - len(row) :] = torch.tensor(row)
        seen[i, length - len(row) :] = 1
    position = (seen.cumsum(1) - 1).clamp(min=0)
    embedded, cache = talker.embed_text_tokens(tokens), DynamicCache()
    frames: list[Tensor] = []
    lengths = torch.full((count,), sampling.max_frames)
    for step in range(sampling.max_frames):
        state = talker.backbone_model(
            inputs_embeds=embedded, attention_mask=seen, position_ids=position, past_key_values=cache, use_cache=True
        ).last_hidden_state[:, -1]
        frame = _frame(talker, state, sampling, generator)
        ended = (frame[:, 0] == 0) & (lengths == sampling.max_frames)
        lengths[ended] = step
        if bool((lengths <= step).all()):
            break
        frames.append(frame)
        embedded = talker.backbone_model.embed_tokens(frame.repeat(2, 1)[:, None])
        seen = F.pad(seen, (0, 1), value=1)
        position = position[:, -1:] + 1
    codes = torch.stack(frames, 1).to(torch.int16).numpy()
    return [c[:n] for c, n in zip(codes, lengths.tolist(), strict=True)]


def _frame(
    talker: CsmForConditionalGeneration, state: Tensor, sampling: Sampling, generator: torch.Generator
) -> Tensor:
    depth, cache = talker.depth_decoder, DynamicCache()
    table, books = depth.model.embed_tokens.weight, talker.config.vocab_size
    codes = [sampling.pick(_guided(talker.lm_head(state), sampling.guidance), sampling.temperature, generator)]
    inputs = state[:, None]
    for k, head in enumerate(depth.codebooks_head.weight):
        embedded = F.embedding(codes[-1].repeat(2) + k * books, table)[:, None]
        inputs = torch.cat([inputs, embedded], 1) if k == 0 else embedded
        hidden = depth.model(inputs_embeds=inputs, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
        codes.append(sampling.pick(_guided(hidden @ head, sampling.guidance), sampling.depth_temperature, generator))
    return torch.stack(codes, 1)


def _guided(logits: Tensor, guidance: float) -> Tensor:
    prompted, unprompted = logits.chunk(2)
    return unprompted + guidance * (prompted - unprompted)
