"""Causal convolutions over (rows, time, channels), as matrix products on packed weights."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor, nn

from streamsynth.models.mimi.activations import elu_into
from streamsynth.models.mimi.layout import Block, Conv
from streamsynth.models.mimi.streaming import Step
from streamsynth.models.mimi.weights import Tensors, frozen
from streamsynth.models.mimi.windows import ConvShape, ConvViews


class CausalConv(nn.Module):
    """A convolution that sees the present and the past; one matrix product over gathered windows.

    Narrow convolutions make several outputs a window, with the kernel repeated at its shifts: more arithmetic, but less
    gathering, and products wide enough to run fast. `per_frame` is how many inputs a frame has.
    """

    def __init__(self, layer: Conv, tensors: Tensors, per_frame: int) -> None:
        super().__init__()
        taps, bias = tensors[f"{layer.name}.conv.weight"], tensors.get(f"{layer.name}.conv.bias")
        taps = _dense_transposed(taps, layer) if layer.transposed else taps.permute(2, 1, 0)
        self.layer_stride, expansion = (1, layer.stride) if layer.transposed else (layer.stride, 1)
        count = _outputs_a_window(taps, per_frame // self.layer_stride)
        weight = _repeated(taps, count, self.layer_stride, layer.dilation)
        self.weight = frozen(weight.flatten(0, 1))
        self.bias = None if bias is None else frozen(bias.repeat(count * expansion))
        self.outputs = layer.outputs
        self.activated = layer.activated
        self.replicate = layer.pad_mode == "replicate"
        self.shape = ConvShape(
            channels=layer.inputs, window=weight.shape[0], stride=self.layer_stride * count, per_frame=per_frame
        )
        self.index = -1

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x (rows, time, channels) is changed only in a step that ends inside a frame."""
        if step.ends_at is not None and self.layer_stride > 1:
            self._complete_(x, step.ends_at)
        views = gather(self, x, step)
        views.columns.copy_(views.windows)
        matrix = views.matrix
        if matrix.dtype != self.weight.dtype:
            matrix = matrix.to(self.weight.dtype)
        made = torch.mm(matrix, self.weight) if self.bias is None else torch.addmm(self.bias, matrix, self.weight)
        return made.view(len(x), -1, self.outputs)

    def _complete_(self, x: Tensor, ends_at: Fraction) -> None:
        """Put behind the stream's last input what `MimiModel` puts there to fill a stride."""
        real = math.ceil(ends_at * x.shape[1])
        x[:, real:] = x[:, real - 1 : real] if self.replicate else 0


def gather(layer: CausalConv | DepthwiseUpsample, x: Tensor, step: Step) -> ConvViews:
    """Put x, through an ELU if the layer wants one, behind its left context, and keep the next context."""
    views, left = step.views[layer.index], step.contexts.each[layer.index]
    if layer.activated:
        elu_into(x, views.body)
    else:
        views.body.copy_(x)
    if layer.replicate:
        # A new stream's context is its first sample, over and over.
        torch.where(step.fresh, views.body[:, :1], left, out=views.head)
    else:
        views.head.copy_(left)
    left.copy_(views.tail)
    return views


def _dense_transposed(weight: Tensor, layer: Conv) -> Tensor:
    """(inputs, outputs / groups, 2 strides) to (the input before and this one, inputs, stride * outputs)."""
    inputs, narrow, _ = weight.shape
    dense = weight.new_zeros(inputs, layer.outputs, 2 * layer.stride)
    for group, part in enumerate(weight.chunk(layer.groups)):
        rows = slice(group * len(part), (group + 1) * len(part))
        dense[rows, group * narrow : (group + 1) * narrow] = part
    this, before = dense.permute(0, 2, 1).flatten(1).view(inputs, 2, -1).unbind(1)
    return torch.stack([before, this])


def _outputs_a_window(taps: Tensor, per_frame: int) -> int:
    """A power of two that divides a frame, as large as keeps a product's width within a cache line or four."""
    count = 1
    while count < 16 and len(taps) > 1 and 2 * count * taps.shape[2] <= 64 and per_frame % (2 * count) == 0:
        count *= 2
    return count


def _repeated(taps: Tensor, count: int, stride: int, dilation: int) -> Tensor:
    """taps (kernel, inputs, outputs) to (window, inputs, count * outputs), each output with its own shift."""
    kernel, inputs, outputs = taps.shape
    window = (kernel - 1) * dilation + 1 + (count - 1) * stride
    weight = taps.new_zeros(window, inputs, count, outputs)
    for shift in range(count):
        start = shift * stride
        weight[start : start + (kernel - 1) * dilation + 1 : dilation, :, shift] = taps
    return weight.flatten(2)


class DepthwiseUpsample(nn.Module):
    """A transposed convolution with a group for each channel: two products instead of a matrix."""

    activated = False
    replicate = False

    def __init__(self, layer: Conv, tensors: Tensors) -> None:
        super().__init__()
        this, before = tensors[f"{layer.name}.conv.weight"][:, 0].t().chunk(2)
        self.this = frozen(this)
        self.before = frozen(before)
        self.shape = ConvShape(channels=layer.inputs, window=2, stride=1, per_frame=1)
        self.index = -1

    def forward(self, x: Tensor, step: Step) -> Tensor:
        inputs = gather(self, x, step).inputs[:, :, None]
        return torch.addcmul(inputs[:, 1:] * self.this, inputs[:, :-1], self.before).flatten(1, 2)


class ResidualBlock(nn.Module):
    """Owns its input: the result may be made in it."""

    def __init__(self, layer: Block, tensors: Tensors, per_frame: int) -> None:
        super().__init__()
        self.first = CausalConv(layer.first, tensors, per_frame)
        self.weight = frozen(tensors[f"{layer.second.name}.conv.weight"][:, :, 0].t())
        bias = tensors[f"{layer.second.name}.conv.bias"]
        self.shortcut: nn.Parameter | None = None
        if layer.shortcut is not None:
            self.shortcut = frozen(tensors[f"{layer.shortcut.name}.conv.weight"][:, :, 0].t())
            bias = bias + tensors[f"{layer.shortcut.name}.conv.bias"]
        self.bias = frozen(bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        hidden = self.first(x, step).flatten(0, 1)
        elu_into(hidden, hidden)
        flat = x.flatten(0, 1)
        kept = flat.add_(self.bias) if self.shortcut is None else torch.addmm(self.bias, flat, self.shortcut)
        return kept.addmm_(hidden, self.weight).view(x.shape)


def seanet(layers: list[Conv | Block], tensors: Tensors, per_frame: int) -> nn.ModuleList:
    """`per_frame` is how many inputs a frame has."""
    modules = nn.ModuleList()
    for layer in layers:
        if isinstance(layer, Block):
            modules.append(ResidualBlock(layer, tensors, per_frame))
            continue
        modules.append(CausalConv(layer, tensors, per_frame))
        per_frame = per_frame * layer.stride if layer.transposed else per_frame // layer.stride
    return modules


def number_convolutions(model: nn.Module) -> list[ConvShape]:
    """Give every convolution its place in a step's contexts and views."""
    shapes: list[ConvShape] = []
    for module in model.modules():
        if isinstance(module, CausalConv | DepthwiseUpsample):
            module.index = len(shapes)
            shapes.append(module.shape)
    return shapes
