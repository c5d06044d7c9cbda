"""The tensors of a `MimiModel` file: which convolutions there are, in order, and every name with its shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamsynth.models.mimi.config import MimiConfig

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Conv:
    """One convolution; `transposed` ones have a kernel of two strides and `groups`."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    transposed: bool = False
    groups: int = 1
    bias: bool = True
    activated: bool = False
    pad_mode: str = "constant"

    def shapes(self) -> Shapes:
        weight = (self.outputs, self.inputs, self.kernel)
        if self.transposed:
            weight = (self.inputs, self.outputs // self.groups, self.kernel)
        named: Shapes = {f"{self.name}.conv.weight": weight}
        if self.bias:
            named[f"{self.name}.conv.bias"] = (self.outputs,)
        return named


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """x + second(elu(first(elu(x)))), or with `shortcut` in the place of x."""

    first: Conv
    second: Conv
    shortcut: Conv | None

    def shapes(self) -> Shapes:
        parts = [self.first, self.second, *([self.shortcut] if self.shortcut else [])]
        return {name: shape for part in parts for name, shape in part.shapes().items()}


def _blocks(config: MimiConfig, names: Iterator[str], channels: int) -> list[Conv | Block]:
    found: list[Conv | Block] = []
    narrow = channels // config.compress
    for index in range(config.num_residual_layers):
        name = next(names)
        first = Conv(
            name=f"{name}.block.1",
            inputs=channels,
            outputs=narrow,
            kernel=config.residual_kernel_size,
            dilation=config.dilation_growth_rate**index,
            activated=True,
            pad_mode=config.pad_mode,
        )
        second = Conv(name=f"{name}.block.3", inputs=narrow, outputs=channels, kernel=1, activated=True)
        shortcut = Conv(name=f"{name}.shortcut", inputs=channels, outputs=channels, kernel=1)
        found.append(Block(first=first, second=second, shortcut=shortcut if config.use_conv_shortcut else None))
    return found


def _names(prefix: str) -> Iterator[str]:
    index = 0
    while True:
        yield f"{prefix}.layers.{index}"
        index += 1


def decoder_layers(config: MimiConfig) -> list[Conv | Block]:
    """The SEANet decoder, from hidden vectors to samples. An ELU before a layer takes a number in the file."""
    names = _names("decoder")
    channels = config.num_filters * 2 ** len(config.upsampling_ratios)
    layers: list[Conv | Block] = [
        Conv(
            name=next(names),
            inputs=config.hidden_size,
            outputs=channels,
            kernel=config.kernel_size,
            pad_mode=config.pad_mode,
        )
    ]
    for ratio in config.upsampling_ratios:
        next(names)
        layers.append(
            Conv(
                name=next(names),
                inputs=channels,
                outputs=channels // 2,
                kernel=2 * ratio,
                stride=ratio,
                transposed=True,
                activated=True,
            )
        )
        channels //= 2
        layers += _blocks(config, names, channels)
    next(names)
    layers.append(
        Conv(
            name=next(names),
            inputs=channels,
            outputs=1,
            kernel=config.last_kernel_size,
            activated=True,
            pad_mode=config.pad_mode,
        )
    )
    return layers


def encoder_layers(config: MimiConfig) -> list[Conv | Block]:
    """The SEANet encoder, from samples to hidden vectors."""
    names = _names("encoder")
    channels = config.num_filters
    layers: list[Conv | Block] = [
        Conv(name=next(names), inputs=1, outputs=channels, kernel=config.kernel_size, pad_mode=config.pad_mode)
    ]
    for ratio in reversed(config.upsampling_ratios):
        layers += _blocks(config, names, channels)
        next(names)
        layers.append(
            Conv(
                name=next(names),
                inputs=channels,
                outputs=2 * channels,
                kernel=2 * ratio,
                stride=ratio,
                activated=True,
                pad_mode=config.pad_mode,
            )
        )
        channels *= 2
    next(names)
    layers.append(
        Conv(
            name=next(names),
            inputs=channels,
            outputs=config.hidden_size,
            kernel=config.last_kernel_size,
            activated=True,
            pad_mode=config.pad_mode,
        )
    )
    return layers


def downsampling(config: MimiConfig) -> Conv:
    """From two transformer steps to one frame."""
    size = config.hidden_size
    return Conv(name="downsample", inputs=size, outputs=size, kernel=4, stride=2, bias=False, pad_mode="replicate")


def upsampling(config: MimiConfig) -> Conv:
    """From one frame to two transformer steps."""
    size = config.hidden_size
    return Conv(
        name="upsample",
        inputs=size,
        outputs=size,
        kernel=4,
        stride=2,
        transposed=True,
        groups=config.upsample_groups,
        bias=False,
    )


def transformer_shapes(config: MimiConfig, prefix: str) -> Shapes:
    size, wide = config.hidden_size, config.intermediate_size
    queries, keys = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    outputs = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    layer: Shapes = {f"self_attn.{name}.weight": (rows, size) for name, rows in outputs.items()}
    layer["self_attn.o_proj.weight"] = (size, queries)
    if config.attention_bias:
        layer |= {f"self_attn.{name}.bias": (rows,) for name, rows in {**outputs, "o_proj": size}.items()}
    layer |= {"mlp.fc1.weight": (wide, size), "mlp.fc2.weight": (size, wide)}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        layer |= {f"{norm}.weight": (size,), f"{norm}.bias": (size,)}
    layer |= {"self_attn_layer_scale.scale": (size,), "mlp_layer_scale.scale": (size,)}
    count = config.num_hidden_layers
    return {f"{prefix}.layers.{index}.{name}": shape for index in range(count) for name, shape in layer.items()}


def quantizers(config: MimiConfig) -> dict[str, int]:
    """The two residual quantizers by name, each with its number of codebooks, in the order of the codes."""
    semantic = config.num_semantic_quantizers
    return {
        "quantizer.semantic_residual_vector_quantizer": semantic,
        "quantizer.acoustic_residual_vector_quantizer": config.num_quantizers - semantic,
    }


def _quantizer_shapes(config: MimiConfig) -> Shapes:
    inner, outer, entries = config.codebook_dim, config.hidden_size, config.codebook_size
    shapes: Shapes = {}
    for name, count in quantizers(config).items():
        if config.projects_codes:
            shapes |= {f"{name}.input_proj.weight": (inner, outer, 1), f"{name}.output_proj.weight": (outer, inner, 1)}
        for index in range(count):
            book = f"{name}.layers.{index}.codebook"
            shapes |= {f"{book}.initialized": (1,), f"{book}.cluster_usage": (entries,)}
            shapes[f"{book}.embed_sum"] = (entries, inner)
    return shapes


def tensor_shapes(config: MimiConfig) -> Shapes:
    """Every tensor of the file."""
    shapes = _quantizer_shapes(config)
    for prefix in ("encoder_transformer", "decoder_transformer"):
        shapes |= transformer_shapes(config, prefix)
    for layer in (*encoder_layers(config), downsampling(config), upsampling(config), *decoder_layers(config)):
        shapes |= layer.shapes()
    return shapes
