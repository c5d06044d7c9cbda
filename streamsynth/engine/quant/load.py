"""A component with float8 layers: from the cache where it is there, else made from the source and put there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from streamsynth.engine.quant.artifact import CPU, ArtifactManifest, DamagedArtifact
from streamsynth.engine.quant.cache import Finished, QuantCache, Wanted
from streamsynth.engine.quant.convert import Quantised, empty_float8_linears, quantise_linears
from streamsynth.engine.quant.float8 import FLOAT8
from streamsynth.engine.quant.linear import Float8Linear
from streamsynth.engine.quant.recipe import Recipe

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """A component before it is quantised. `files`, below the folder `origin`, and `variant`, the class and the dtype
    say, are all that decides what it is.

    `full` loads it as always, on the CPU. `empty` builds the same modules under `parameters_on_meta`.
    """

    component: str
    origin: Path
    files: Sequence[Path]
    full: Callable[[], nn.Module]
    empty: Callable[[], nn.Module]
    variant: str = ""

    def wanted(self, recipe: Recipe, cache: QuantCache, *, fresh: bool = False) -> Wanted:
        """Raises INVALID_VALUE, OSError."""
        return cache.identify(self.component, recipe, self.origin, self.files, variant=self.variant, fresh=fresh)


@dataclass(frozen=True, slots=True)
class Loaded:
    """`fault`: why the cache was of no use, or could not be given the component; the module is right all the same."""

    module: nn.Module
    quantised: Quantised
    hit: bool
    fault: str | None = None


def load_quantised(
    source: Source,
    recipe: Recipe,
    cache: QuantCache | None,
    device: torch.device | str | None = None,
    *,
    agreed: Callable[[bool], bool] = lambda hit: hit,
    builds: bool = True,
    stay: bool = False,
) -> Loaded:
    """For inference, on the CPU; a hit and a miss give the same bytes. A hit's weights are views of mapped files.

    Weights are quantised on `device`. Those `stay` there where all of the module will be, and so does all of a hit,
    which gets there while it is read. `agreed`: of
    several ranks, whether all have what this one says it has: then all take the same way; one of them `builds`.
    Blocks; raises what `source.full` raises, and INVALID_VALUE as `quantise_linears`.
    """
    if cache is None:
        return _made(source, recipe, device, stay)
    found, fault = _found(source, recipe, cache, torch.device(device) if stay and device is not None else CPU)
    if agreed(found is not None) and found is not None:
        return found
    if not builds:
        return _made(source, recipe, device, stay, fault)
    try:
        wanted = source.wanted(recipe, cache, fresh=True)
    except OSError as error:
        return _made(source, recipe, device, stay, _fault(str(error)))
    made = _made(source, recipe, device, stay, fault)
    try:
        # A source that changed while it was read would be kept under a name that is not its own.
        if source.wanted(recipe, cache) != wanted:
            return Loaded(made.module, made.quantised, False, _fault("the source changed while it was loaded"))
        # What is there may be intact and yet of no use: another version of the model's code made it.
        cache.build(wanted, lambda: finished(made.module, made.quantised), replace=fault is not None)
    except OSError as error:
        return Loaded(made.module, made.quantised, False, _fault(str(error)))
    return made


def finished(module: nn.Module, quantised: Quantised) -> Finished:
    """What the cache keeps of a module: every parameter and buffer, and which of them are one."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for place in _places(module):
        if id(place.held) in first:
            aliases[place.name] = first[id(place.held)]
        else:
            first[id(place.held)] = place.name
            tensors[place.name] = place.held.view(FLOAT8) if place.float8 else place.held
    return Finished(tensors, aliases, quantised.layers)


def _found(source: Source, recipe: Recipe, cache: QuantCache, device: torch.device) -> tuple[Loaded | None, str | None]:
    try:
        wanted = source.wanted(recipe, cache)
        read = cache.read(wanted, device)
        if read is None:
            return None, None
        module = source.empty()
        quantised = empty_float8_linears(module, recipe)
        _fill(module, quantised, *read)
    except (OSError, DamagedArtifact) as error:
        return None, _fault(str(error))
    return Loaded(module.eval().requires_grad_(False), quantised, True), None


def _made(
    source: Source, recipe: Recipe, device: torch.device | str | None, stay: bool, fault: str | None = None
) -> Loaded:
    module = source.full()
    quantised = quantise_linears(module, recipe, device, stay=stay)
    return Loaded(module.eval().requires_grad_(False), quantised, False, fault)


def _fill(module: nn.Module, quantised: Quantised, manifest: ArtifactManifest, tensors: dict[str, Tensor]) -> None:
    """Nothing is filled unless everything fits. Raises DamagedArtifact."""
    if manifest.layers != quantised.layers:
        raise DamagedArtifact("its quantised layers are not those of the model")
    places = list(_places(module))
    names = {place.name for place in places}
    if names != set(tensors):
        raise DamagedArtifact(f"its tensors are not those of the model: {sorted(names ^ set(tensors))[:3]}")
    for place in places:
        tensor = tensors[place.name]
        if place.held.shape != tensor.shape or place.float8 != (tensor.dtype is FLOAT8):
            raise DamagedArtifact(f"{place.name} is not as the model has it: {tuple(tensor.shape)}, {tensor.dtype}")
    parameters: dict[int, nn.Parameter] = {}
    for place in places:
        tensor = tensors[place.name]
        if not isinstance(place.held, nn.Parameter):
            place.table[place.attribute] = tensor
            continue
        if id(tensor) not in parameters:
            stored = tensor.view(torch.int8) if place.float8 else tensor
            parameters[id(tensor)] = nn.Parameter(stored, requires_grad=False)
        place.table[place.attribute] = parameters[id(tensor)]


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor of a module: the name that it is kept under, and what holds it."""

    name: str
    table: dict[str, Tensor | None]
    attribute: str
    held: Tensor
    float8: bool


def _places(module: nn.Module) -> Iterator[_Place]:
    for path, each in module.named_modules():
        tables: tuple[dict[str, Tensor | None], ...] = (each._parameters, each._buffers)
        for table in tables:
            for attribute, held in table.items():
                if held is None:
                    continue
                # Others read the files too: there the bytes have their own dtype, and the weight its usual name.
                float8 = isinstance(each, Float8Linear) and attribute == "weight_bytes"
                kept = "weight" if float8 else attribute
                yield _Place(f"{path}.{kept}" if path else kept, table, attribute, held, float8)


def _fault(what: str) -> str:
    logger.warning("the cache of quantised weights was of no use: %s", what)
    return what
