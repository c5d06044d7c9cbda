"""Training of transformer and text encoder: every chunk at its own noise level, over clean chunks before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from streamsynth.models.wan.model import WanTransformer
from streamsynth.models.wan.rotary import rotary
from streamsynth.models.wan.schedule import TRAIN_STEPS
from streamsynth.models.wan.text_encoder import TextEncoder
from train_tiny_world.chunked_attention import OwnChunkAttention, RealRotary, TeacherForcedAttention
from train_tiny_world.clips import CHUNK_FRAMES, Words, words
from train_tiny_world.latent_bank import Clips
from train_tiny_world.networks import CONTEXT_CHUNKS


@dataclass(frozen=True)
class FlowSettings:
    learning_rate: float = 1e-3
    shift: float = 2.5
    """More of the training at high noise."""
    silent: float = 0.1
    """The share of clips trained without their prompt, for guidance."""
    told_noise: float = 0.4
    """The most noise that context gets and the model is told of, in half of the clips."""
    untold_noise: float = 0.06
    """The most that it is not told of: a rollout's own chunks are never quite clean."""
    alone: float = 0.2
    """The share of clips whose chunks see none before them: what is not to be seen must be read."""
    recached: float = 0.25
    """The share of clips whose context is read under the prompt in force after their change."""
    focus: float = 4.0
    """How much more an error counts where things are."""
    warmup_steps: int = 300
    decay_from: float = 0.3
    """The share of the training after which the learning rate falls."""
    average_decay: float = 0.999


@dataclass(frozen=True)
class Context:
    """What a batch of clips is conditioned on, made once for any number of passes.

    `clean` (clips, chunks, channels, frames, height, width) with the noise `levels` (clips, chunks) that the model is
    told; `text` (clips, 2, chunks, tokens, text_dim) for the clean and for the noisy rows, and `read` (clips, chunks)
    the second prompt's weights in the clean ones; `counts` (clips, chunks) is 0 where a chunk's context says what it
    cannot know yet; `alone` (clips,) names the clips whose noisy chunks see no context.
    """

    clean: Tensor
    levels: Tensor
    text: Tensor
    read: Tensor
    counts: Tensor
    alone: Tensor


class Velocity:
    """One pass over all chunks of a batch."""

    def __init__(
        self, transformer: WanTransformer, chunks: int, size: int, device: torch.device, *, compiled: bool
    ) -> None:
        self._transformer = transformer
        self._attention = TeacherForcedAttention(chunks=chunks, context=CONTEXT_CHUNKS, device=device)
        config = transformer.config
        positions = torch.arange(chunks * CHUNK_FRAMES, device=device).unflatten(0, (chunks, CHUNK_FRAMES))
        turned = rotary(
            positions, size // config.patch_size[1], size // config.patch_size[2], config.attention_head_dim
        )
        self._cos, self._sin = turned.turns.real.contiguous(), turned.turns.imag.contiguous()
        self._run: Callable[..., Tensor] = torch.compile(self._forward, dynamic=False) if compiled else self._forward

    def __call__(self, context: Context, noisy: Tensor, levels: Tensor) -> Tensor:
        """The flow of `noisy`, shaped as it is, at noise levels (clips, chunks)."""
        rows = torch.stack([context.clean, noisy], 1).flatten(0, 2)
        told = torch.stack([context.levels, levels], 1).flatten()[:, None] * TRAIN_STEPS
        clips = len(noisy)
        self._attention.show(clips, context.alone)
        flow = self._run(
            rows,
            told,
            context.text.flatten(0, 2),
            self._cos.repeat(2 * clips, 1, 1, 1),
            self._sin.repeat(2 * clips, 1, 1, 1),
        )
        return flow.unflatten(0, (clips, 2, -1))[:, 1].float()

    def _forward(self, rows: Tensor, told: Tensor, text: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda):
            prompt = self._transformer.prompt_context(text)
            return self._transformer(rows, told, prompt, RealRotary(torch.empty(0), cos, sin), self._attention)


class LoneVelocity:
    """One pass over chunks of which each is a first one: half the cost of `Velocity`, and all of it teaches words."""

    def __init__(self, transformer: WanTransformer, size: int, device: torch.device, *, compiled: bool) -> None:
        self._transformer = transformer
        config = transformer.config
        patch = config.patch_size
        positions = torch.arange(CHUNK_FRAMES, device=device)[None]
        turned = rotary(positions, size // patch[1], size // patch[2], config.attention_head_dim)
        self._cos, self._sin = turned.turns.real.contiguous(), turned.turns.imag.contiguous()
        self._run: Callable[..., Tensor] = torch.compile(self._forward, dynamic=False) if compiled else self._forward

    def __call__(self, context: Context, noisy: Tensor, levels: Tensor) -> Tensor:
        flow = self._run(noisy.flatten(0, 1), levels.flatten()[:, None] * TRAIN_STEPS, context.text[:, 1].flatten(0, 1))
        return flow.unflatten(0, noisy.shape[:2]).float()

    def _forward(self, rows: Tensor, told: Tensor, text: Tensor) -> Tensor:
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda):
            prompt = self._transformer.prompt_context(text)
            turned = RealRotary(torch.empty(0), self._cos, self._sin)
            return self._transformer(rows, told, prompt, turned, OwnChunkAttention())


def shifted_levels(shape: tuple[int, ...], shift: float, device: torch.device) -> Tensor:
    """Logit-normal levels, shifted; a tenth uniform, so that no level is forgotten."""
    level = torch.randn(shape, device=device).sigmoid()
    level = torch.where(torch.rand(shape, device=device) < 0.1, torch.rand(shape, device=device), level)
    return shift * level / (1 + (shift - 1) * level)


def read_words(encoder: TextEncoder, said: Words, read: Tensor, weights: Tensor) -> Tensor:
    """Embeddings (clips, 2, chunks, tokens, text_dim): both prompts of `said` (clips, 2, ...), blended by the second's
    weights (clips, chunks) in clean and in noisy rows; zeros beyond each prompt's length."""
    made = encoder(said.tokens.flatten(0, 1), said.lengths.flatten(0, 1)).unflatten(0, said.tokens.shape[:2])
    first, second = made[:, 0, None, None], made[:, 1, None, None]
    return torch.lerp(first, second, torch.stack([read, weights], 1)[..., None, None].to(made.dtype))


class Conditions:
    """Makes contexts from clips as training sees them: noise on what came before, prompts left out, caches renewed."""

    def __init__(self, encoder: TextEncoder, settings: FlowSettings, device: torch.device) -> None:
        self._encoder, self._settings = encoder, settings
        self._nothing = words([""], device)

    def __call__(self, clips: Clips, clean: Tensor | None = None) -> Context:
        """`clean` is what context is made from, where it is not the clips' own latents."""
        settings, device = self._settings, clips.latents.device
        count, chunks = clips.weights.shape
        source = clips.latents if clean is None else clean

        def chance(*shape: int) -> Tensor:
            return torch.rand(*shape, device=device)

        silent = chance(count) < settings.silent
        said = Words(
            torch.where(silent[:, None, None], self._nothing.tokens, clips.words.tokens),
            torch.where(silent[:, None], self._nothing.lengths, clips.words.lengths),
        )
        recached = (chance(count) < settings.recached) & (clips.switch < chunks)
        after = torch.where(recached[:, None], torch.ones_like(clips.weights), clips.weights)
        text = read_words(self._encoder, said, after, clips.weights)
        alone = chance(count) < settings.alone
        counts = 1 - (recached[:, None] & ~alone[:, None] & (clips.weights < 1)).float()
        told = chance(count, chunks) * settings.told_noise * (chance(count, 1) < 0.5)
        untold = chance(count, chunks) * settings.untold_noise * (chance(count, 1) < 0.5)
        level = (told + untold)[..., None, None, None, None]
        context = torch.lerp(source, torch.randn_like(source), level)
        return Context(context, told, text, after, counts, alone)


class FlowTraining:
    """Trains transformer and text encoder in place, and keeps a running average of their weights."""

    def __init__(
        self,
        transformer: WanTransformer,
        encoder: TextEncoder,
        settings: FlowSettings,
        velocity: Velocity | LoneVelocity,
    ) -> None:
        self.settings = settings
        self.weights = [*transformer.parameters(), *encoder.parameters()]
        self.average = [weight.detach().clone() for weight in self.weights]
        self.device = self.weights[0].device
        self.velocity = velocity
        self.conditions = Conditions(encoder, settings, self.device)
        decayed, plain = ([weight for weight in self.weights if (weight.ndim >= 2) == large] for large in (True, False))
        groups = [{"params": decayed, "weight_decay": 0.02}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, settings.learning_rate, (0.9, 0.97), fused=self.device.type == "cuda"
        )
        self.steps = 0

    def step(self, clips: Clips, progress: float) -> Tensor:
        """The mean square error of the flow; `progress` runs from 0 to 1 and sets the learning rate."""
        context = self.conditions(clips)
        noise = torch.randn_like(clips.latents)
        levels = shifted_levels(clips.weights.shape, self.settings.shift, self.device)
        noisy = torch.lerp(clips.latents, noise, levels[..., None, None, None, None])
        flow = self.velocity(context, noisy, levels)
        return self.learn(flow, noise - clips.latents, clips.focus, context.counts, progress)

    def learn(self, flow: Tensor, wished: Tensor, focus: Tensor, counts: Tensor, progress: float) -> Tensor:
        """One step of the optimizer towards `wished`, of the chunks that count, most where things are."""
        weights = 1 + self.settings.focus * focus
        error = ((flow - wished).square() * (weights / weights.mean())[:, :, None]).mean((2, 3, 4, 5))
        loss = (error * counts).sum() / counts.sum().clamp_min(1)
        start = self.settings.decay_from
        rate = self.settings.learning_rate * min(1.0, (self.steps + 1) / self.settings.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * (1.0 if progress < start else max(0.02, (1 - progress) / (1 - start)))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.steps += 1
        decay = min(self.settings.average_decay, self.steps / (self.steps + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self.average, [weight.detach() for weight in self.weights], 1 - decay)
        return loss.detach()

    @torch.no_grad()
    def swap_average(self) -> None:
        """Trained and averaged weights change places; a second call puts them back."""
        for weight, average in zip(self.weights, self.average, strict=True):
            held = weight.clone()
            weight.copy_(average)
            average.copy_(held)
