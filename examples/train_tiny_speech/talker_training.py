"""One training step of the talker: next-frame prediction over packed rows, with dropout and averaged weights.

Runs the layers of transformers' `CsmForConditionalGeneration` itself; what is learned loads there unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CsmForConditionalGeneration

from train_tiny_speech.talker_batches import PackedBatch
from train_tiny_speech.text_tokens import PAD

_IGNORED = -10_000


@dataclass(frozen=True)
class TalkerSettings:
    learning_rate: float = 1e-3
    dropout: float = 0.1
    wrong_frames: float = 0.08
    depth_targets: int = 8192
    warmup_steps: int = 400
    average_decay: float = 0.999


@dataclass(frozen=True)
class TalkerLosses:
    """Device scalars, in nats: the first codebook, and the mean of the others. Reading one waits for the device."""

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
    """Trains `talker` in place and keeps a running average of its weights. All batches have the shape of `like`."""

    def __init__(
        self, talker: CsmForConditionalGeneration, like: PackedBatch, settings: TalkerSettings, compiled: bool
    ) -> None:
        self._talker, self._settings = talker, settings
        self._device = talker.lm_head.weight.device
        self._batch = PackedBatch(**{name: value.to(self._device, copy=True) for name, value in vars(like).items()})
        self._weights = list(talker.parameters())
        self._average = [w.detach().clone() for w in self._weights]
        on_cuda = self._device.type == "cuda"
        self._rate = torch.tensor(0.0, device=self._device)
        decayed, plain = ([w for w in self._weights if (w.ndim >= 2) == matrix] for matrix in (True, False))
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, self._rate, betas=(0.9, 0.95), fused=True, capturable=on_cuda)
        fast: Callable[..., Callable[..., Tensor]] = partial(torch.compile, dynamic=False) if compiled else lambda f: f
        self._fast = _Kernels(fast(_run_layers), fast(_cross_entropy))
        self._graph: torch.cuda.CUDAGraph | None = None
        self._steps = 0

    def step(self, batch: PackedBatch, progress: float) -> TalkerLosses:
        """`progress` runs from 0 to 1 over the training and sets the learning rate, which falls along a cosine."""
        warm = min(1.0, (self._steps + 1) / self._settings.warmup_steps)
        falling = 0.01 + 0.495 * (1 + math.cos(math.pi * min(1.0, progress)))
        self._rate.fill_(self._settings.learning_rate * warm * falling)
        for name, value in vars(batch).items():
            getattr(self._batch, name).copy_(value, non_blocking=True)
        if self._graph is None:
            self._losses = self._update()
        else:
            self._graph.replay()
        self._steps += 1
        return self._losses

    def capture(self) -> None:
        """From now on a step is one launch of a CUDA graph. A few plain steps must have settled all allocations."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Another thread pins batches meanwhile, which a capture that watches all threads would not suffer.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._losses = self._update()
        self._graph = graph

    @torch.no_grad()
    def evaluate(self, batches: Sequence[PackedBatch]) -> TalkerLosses:
        """Means over all judged frames of the batches."""
        kernels = _Kernels(_run_layers, _cross_entropy)
        losses = [
            self._forward(PackedBatch(**{name: value.to(self._device) for name, value in vars(batch).items()}), kernels)
            for batch in batches
        ]
        judged = torch.tensor([float((batch.predicting >= 0).sum()) for batch in batches], device=self._device)
        first, depth = (torch.stack(part) @ judged / judged.sum() for part in zip(*map(astuple, losses), strict=True))
        return TalkerLosses(first, depth)

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

    def _update(self) -> TalkerLosses:
        settings = self._settings
        losses = self._forward(self._batch, self._fast, settings.dropout, settings.wrong_frames)
        gradients = torch.autograd.grad(losses.first + losses.depth, self._weights)
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = torch.empty_like(weight) if weight.grad is None else weight.grad
            weight.grad.copy_(gradient)  # the fused optimizer wants the strides of the weight
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self._average, [w.detach() for w in self._weights], 1 - settings.average_decay)
        return TalkerLosses(losses.first.detach(), losses.depth.detach())

    def _forward(
        self, batch: PackedBatch, kernels: _Kernels, dropout: float = 0.0, wrong_frames: float = 0.0
    ) -> TalkerLosses:
        on_cuda = self._device.type == "cuda"
        backbone = self._talker.backbone_model
        # A cached cast of a weight would be made once, in the captured graph's own memory.
        with torch.autocast(self._device.type, torch.bfloat16, enabled=on_cuda, cache_enabled=False):
            codes = batch.codes.long()
            audio = self._embed_codes(_slips(batch, codes, wrong_frames)).sum(-2)
            text = _rows(self._talker.embed_text_tokens.weight, batch.text.long())
            embedded = torch.where((batch.text == PAD)[..., None], audio, text)
            same = batch.document[:, :, None] == batch.document[:, None, :]
            visible = same.tril()[:, None]
            hidden = kernels.run_layers(backbone, embedded, visible, batch.position.long(), dropout)
            predicting = batch.predicting.long().clamp(min=0)
            states = hidden.flatten(0, 1).index_select(0, predicting)
            targets = F.pad(codes.flatten(0, 1), (0, 0, 0, 1)).index_select(0, predicting + 1)
            ignored = torch.where(batch.predicting < 0, _IGNORED, 0)[:, None]
            first = kernels.cross_entropy(states, self._talker.lm_head.weight, (targets + ignored)[:, 0])
            some = slice(self._settings.depth_targets)
            depth = self._depth_loss(states[some], targets[some], ignored[some], dropout, kernels)
        return TalkerLosses(first, depth)

    def _embed_codes(self, codes: Tensor) -> Tensor:
        books = torch.arange(codes.shape[-1], device=codes.device) * self._talker.config.vocab_size
        return _rows(self._talker.depth_decoder.model.embed_tokens.weight, codes + books)

    def _depth_loss(self, states: Tensor, codes: Tensor, ignored: Tensor, dropout: float, kernels: _Kernels) -> Tensor:
        decoder = self._talker.depth_decoder
        audio = self._embed_codes(codes)[:, :-1]
        embedded = decoder.model.inputs_embeds_projector(torch.cat([states[:, None].to(audio.dtype), audio], 1))
        positions = torch.arange(codes.shape[1], device=codes.device)[None]
        hidden = kernels.run_layers(decoder.model, embedded, None, positions, dropout)[:, 1:]
        heads = decoder.codebooks_head.weight
        targets = codes + ignored
        losses = [kernels.cross_entropy(hidden[:, k], heads[k].T, targets[:, k + 1]) for k in range(len(heads))]
        return torch.stack(losses).mean()


def _slips(batch: PackedBatch, codes: Tensor, share: float) -> Tensor:
    """Some frames replaced by ones from elsewhere in the batch: the talker learns to go on after a slip."""
    if share == 0:
        return codes
    flat = codes.flatten(0, 1)
    others = flat.index_select(0, torch.randint(len(flat), (len(flat),), device=flat.device)).view_as(codes)
    slipped = (torch.rand(batch.text.shape, device=flat.device) < share)[..., None] & (others[..., :1] > 0)
    return torch.where(slipped, others, codes)


def _rows(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.flatten()).view(*index.shape, -1)


def _run_layers(model: nn.Module, x: Tensor, visible: Tensor | None, positions: Tensor, dropout: float) -> Tensor:
    rotation = model.rotary_emb(x, position_ids=positions)
    x = F.dropout(x, dropout)
    for layer in model.layers:
        mixed = layer.self_attn(layer.input_layernorm(x), position_embeddings=rotation, attention_mask=visible)[0]
        x = x + F.dropout(mixed, dropout)
        x = x + F.dropout(layer.mlp(layer.post_attention_layernorm(x)), dropout)
    return model.norm(x)


def _cross_entropy(states: Tensor, head: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(states, head).float(), target.clamp(min=-1), ignore_index=-1)
