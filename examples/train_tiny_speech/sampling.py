"""Speaks a batch of prompts with guidance, through plain transformers modules: the talker's voice in evaluation.

A prompt may stand behind segments that were spoken before it, as in the chains that the talker is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import CsmForConditionalGeneration, DynamicCache

from train_tiny_speech.documents import Document, Segment
from train_tiny_speech.text_tokens import UNCONDITIONAL

_POSITIONS = 512
"""No chain that was trained on is longer."""

_FRAMES_PER_SYMBOL = 2
"""What is kept free for the frames of a prompt, generously."""

Prompt = Sequence[int]
Codes = NDArray[np.int16]


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


def speak_chains(
    talker: CsmForConditionalGeneration, chains: Sequence[Sequence[Prompt]], sampling: Sampling, seed: int, earlier: int
) -> list[list[Codes]]:
    """Codes of each chain's prompts, each behind at most `earlier` segments of its chain that there is room for."""
    spoken: list[Document] = [[] for _ in chains]
    for k in range(max(map(len, chains))):
        some = [i for i, chain in enumerate(chains) if k < len(chain)]
        prompts = [chains[i][k] for i in some]
        said = [_newest(spoken[i][max(0, k - earlier) :], prompt) for i, prompt in zip(some, prompts, strict=True)]
        for i, prompt, codes in zip(some, prompts, speak(talker, prompts, sampling, seed + k, said), strict=True):
            spoken[i].append(Segment(list(prompt), codes))
    return [[segment.codes for segment in document] for document in spoken]


def _newest(document: Document, prompt: Prompt) -> Document:
    """The last whole segments that leave room for the prompt and its frames."""
    room = _POSITIONS - len(prompt) * (1 + _FRAMES_PER_SYMBOL)
    sizes = np.cumsum([len(segment) for segment in reversed(document)])
    return document[len(document) - int((sizes <= room).sum()) :]


@torch.inference_mode()
def speak(
    talker: CsmForConditionalGeneration,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    seed: int,
    said: Sequence[Document] | None = None,
) -> list[Codes]:
    """Codes [frames, codebooks] of each prompt, behind what was `said` before it.

    The second half of the rows carries the unconditional prompts, behind the same.
    """
    generator = torch.Generator().manual_seed(seed)
    count = len(prompts)
    before = [_embedded(talker, document) for document in said or [[]] * count]
    ends = [*prompts, *([UNCONDITIONAL] * count)]
    rows = [torch.cat([b, _words(talker, end)]) for b, end in zip(before * 2, ends, strict=True)]
    length = max(map(len, rows))
    embedded = torch.stack([F.pad(row, (0, 0, length - len(row), 0)) for row in rows])
    seen = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
    position = (seen.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache()
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


def _words(talker: CsmForConditionalGeneration, prompt: Prompt) -> Tensor:
    words: Tensor = talker.embed_text_tokens(torch.tensor(prompt))
    return words


def _embedded(talker: CsmForConditionalGeneration, document: Document) -> Tensor:
    """[positions, hidden]: each prompt, then the frames that say it."""
    parts = [torch.zeros(0, talker.config.hidden_size)]
    for segment in document:
        frames = torch.from_numpy(segment.codes.astype(np.int64))
        parts += [_words(talker, segment.prompt), talker.backbone_model.embed_tokens(frames[None])[0]]
    return torch.cat(parts)


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
