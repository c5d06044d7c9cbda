"""One training step of the talker: next-frame prediction over packed rows, with dropout and averaged weights.

Runs the layers of transformers' `CsmForConditionalGeneration` itself; what is learned loads there unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import CsmConfig, CsmForConditionalGeneration

from train_tiny_speech.talker_batches import PackedBatch


@dataclass(frozen=True)
class TalkerSettings:
    learning_rate: float = 1e-3
    dropout: float = 0.1
    wrong_frames: float = 0.08
    depth_targets: int = 16384
    warmup_steps: int = 200
    hold: float = 0.3
    average_decay: float = 0.998


def load_talker(folder: Path) -> CsmForConditionalGeneration:
    """float32, with the audio embeddings of backbone and depth decoder tied, and no codec inside."""
    talker = new_talker(CsmConfig.from_pretrained(folder))
    weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    missing, unexpected = talker.load_state_dict(weights, strict=False)
    tied = {"backbone_model.embed_tokens.embed_audio_tokens.weight"}
    if unexpected or set(missing) - tied:
        raise ValueError(f"{folder} is no talker: missing {missing}, unexpected {unexpected}")
    return talker.eval()


def new_talker(config: CsmConfig) -> CsmForConditionalGeneration:
    talker = CsmForConditionalGeneration(config).float()
    talker.codec_model = nn.Identity()
    talker.backbone_model.embed_tokens.embed_audio_tokens.weight = talker.depth_decoder.model.embed_tokens.weight
    return talker


def save_talker(talker: CsmForConditionalGeneration, folder: Path) -> None:
    """float16, as published: the tied embeddings stored once, no codec."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().to(torch.float16).cpu().contiguous() for name, value in talker.state_dict().items()}
    weights.pop("backbone_model.embed_tokens.embed_audio_tokens.weight", None)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    talker.config.save_pretrained(folder)


@dataclass(frozen=True)
class TalkerLosses:
    """Device scalars, in nats: the first codebook, and the mean of the others."""

    first: Tensor
    depth: Tensor

    def __str__(self) -> str:
        return f"first codebook {float(self.first):.3f}, others {float(self.depth):.3f}"


@dataclass(frozen=True)
class _Kernels:
    """The two places where the time goes, compiled or plain."""

    run_layers: Callable[..., Tensor]
    cross_entropy: Callable[..., Tensor]


class TalkerTraining:
    """Trains `talker` in place on `codes` [frames + 1, codebooks] and keeps a running average of its weights."""

    def __init__(
        self, talker: CsmForConditionalGeneration, codes: Tensor, settings: TalkerSettings, compiled: bool
    ) -> None:
        self._talker, self._codes, self._settings = talker, codes, settings
        self._weights = list(talker.parameters())
        self._average = [w.detach().clone() for w in self._weights]
        decayed, plain = ([w for w in self._weights if (w.ndim >= 2) == matrix] for matrix in (True, False))
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, settings.learning_rate, betas=(0.9, 0.95), fused=True)
        fast: Callable[..., Callable[..., Tensor]] = partial(torch.compile, dynamic=False) if compiled else lambda f: f
        self._fast = _Kernels(fast(_run_layers), fast(_cross_entropy))
        self._steps = 0

    def step(self, batch: PackedBatch, progress: float) -> TalkerLosses:
        """`progress` runs from 0 to 1 over the training and sets the learning rate."""
        hold = self._settings.hold
        falling = 1.0 if progress < hold else max(0.02, 1 - (progress - hold) / (1 - hold))
        for group in self._optimizer.param_groups:
            group["lr"] = (
                self._settings.learning_rate * falling * min(1.0, (self._steps + 1) / self._settings.warmup_steps)
            )
        losses = self._losses(batch, training=True)
        self._optimizer.zero_grad(set_to_none=True)
        (losses.first + losses.depth).backward()
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        self._optimizer.step()
        self._steps += 1
        decay = min(self._settings.average_decay, self._steps / (self._steps + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self._average, [w.detach() for w in self._weights], 1 - decay)
        return TalkerLosses(losses.first.detach(), losses.depth.detach())

    @torch.no_grad()
    def evaluate(self, batches: Iterable[PackedBatch]) -> TalkerLosses:
        losses = [self._losses(batch, training=False) for batch in batches]
        return TalkerLosses(
            *(torch.stack(values).mean() for values in zip(*(vars(x).values() for x in losses), strict=True))
        )

    def averaged(self) -> CsmForConditionalGeneration:
        """The talker with the averaged weights; `restore` puts the trained ones back."""
        self._swap()
        return self._talker

    def restore(self) -> None:
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, average in zip(self._weights, self._average, strict=True):
            held = weight.clone()
            weight.copy_(average)
            average.copy_(held)

    def _losses(self, batch: PackedBatch, *, training: bool) -> TalkerLosses:
        device = self._codes.device
        batch = batch.to(device)
        dropout = self._settings.dropout if training else 0.0
        kernels = self._fast if training else _Kernels(_run_layers, _cross_entropy)
        backbone = self._talker.backbone_model
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            embedded = torch.where(
                (batch.frame >= 0)[..., None],
                self._embed_frames(batch.frame, training),
                self._talker.embed_text_tokens(batch.text),
            )
            same = batch.document[:, :, None] == batch.document[:, None, :]
            visible = same.tril()[:, None]
            hidden = kernels.run_layers(backbone, embedded, visible, batch.position, dropout)
            states = hidden.flatten(0, 1)[batch.predicting]
            codes = self._codes[batch.target].long()
            first = kernels.cross_entropy(states, self._talker.lm_head.weight, codes[:, 0])
            some = slice(self._settings.depth_targets)
            depth = self._depth_loss(states[some], codes[some], dropout, kernels)
        return TalkerLosses(first, depth)

    def _embed_frames(self, frame: Tensor, training: bool) -> Tensor:
        """In training some frames are replaced by random ones: the talker learns to go on after a slip."""
        frame = frame.clamp(min=0)
        if training:
            wrong = torch.rand(frame.shape, device=frame.device) < self._settings.wrong_frames
            frame = torch.where(wrong, torch.randint_like(frame, len(self._codes) - 1), frame)
        return self._embed_codes(self._codes[frame].long()).sum(-2)

    def _embed_codes(self, codes: Tensor) -> Tensor:
        books = torch.arange(codes.shape[-1], device=codes.device) * self._talker.config.vocab_size
        return F.embedding(codes + books, self._talker.depth_decoder.model.embed_tokens.weight)

    def _depth_loss(self, states: Tensor, codes: Tensor, dropout: float, kernels: _Kernels) -> Tensor:
        decoder = self._talker.depth_decoder
        audio = self._embed_codes(codes)[:, :-1]
        embedded = decoder.model.inputs_embeds_projector(torch.cat([states[:, None].to(audio.dtype), audio], 1))
        positions = torch.arange(codes.shape[1], device=codes.device)[None]
        hidden = kernels.run_layers(decoder.model, embedded, None, positions, dropout)[:, 1:]
        heads = decoder.codebooks_head.weight
        losses = [kernels.cross_entropy(hidden[:, k], heads[k].T, codes[:, k + 1]) for k in range(len(heads))]
        return torch.stack(losses).mean()


def _run_layers(model: nn.Module, x: Tensor, visible: Tensor | None, positions: Tensor, dropout: float) -> Tensor:
    rotation = model.rotary_emb(x, position_ids=positions)
    x = F.dropout(x, dropout)
    for layer in model.layers:
        mixed = layer.self_attn(layer.input_layernorm(x), position_embeddings=rotation, attention_mask=visible)[0]
        x = x + F.dropout(mixed, dropout)
        x = x + F.dropout(layer.mlp(layer.post_attention_layernorm(x)), dropout)
    return model.norm(x)


def _cross_entropy(states: Tensor, head: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(states, head).float(), target)
