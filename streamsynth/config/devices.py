"""Which devices a stage has: those that it names, or of several ranks some that no other stage has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamsynth.config.deployment import Deployment, StageDeployment
from streamsynth.errors import StreamSynthError, invalid_value


def assign_devices(deployments: Sequence[Deployment], count: int) -> list[Deployment]:
    """The deployments, with `devices` decided for every stage of several ranks, out of `count` that there are.

    What a stage names is taken as said, also where two name the same. A stage of one process that names none keeps to
    the device of its option, which is the first unless that says another. Raises INVALID_VALUE for devices that there
    are not, or not enough of.
    """
    stages = [stage for deployment in deployments for stage in deployment.stages.values()]
    for stage in stages:
        _check(stage, count)
    taken = {place for stage in stages for place in _kept(stage)}
    assigned: list[Deployment] = []
    for deployment in deployments:
        decided = {}
        for name, stage in deployment.stages.items():
            decided[name] = stage
            if stage.num_gpus > 1 and _on_devices(stage) and not stage.devices:
                free = [place for place in range(count) if place not in taken]
                decided[name] = replace(stage, devices=_some(stage, free, count))
                taken.update(decided[name].devices)
        assigned.append(replace(deployment, stages=decided))
    return assigned


def _check(stage: StageDeployment, count: int) -> None:
    named, option = stage.devices, str(stage.options.get("device"))
    if named and not _on_devices(stage):
        raise _refused(stage, "devices", named, "left out: this stage runs on the CPU")
    if option.startswith("cuda:") and (named or stage.num_gpus > 1):
        raise _refused(stage, "device", option, "cuda where a stage has several ranks, or names its devices")
    if named and len(named) != stage.num_gpus:
        raise _refused(stage, "devices", named, f"as many as num_gpus, which is {stage.num_gpus}")
    if named and max(named) >= count:
        raise _refused(stage, "devices", named, f"of the {count} that there are, which count from 0")


def _some(stage: StageDeployment, free: Sequence[int], count: int) -> list[int]:
    if len(free) < stage.num_gpus:
        others = "" if len(free) == count else f": {count - len(free)} of the {count} are other stages'"
        raise _refused(stage, "num_gpus", stage.num_gpus, f"at most {len(free)}, the devices that there are{others}")
    return list(free[: stage.num_gpus])


def _kept(stage: StageDeployment) -> list[int]:
    """What it has already."""
    if stage.devices or stage.num_gpus > 1 or not _on_devices(stage):
        return list(stage.devices)
    number = str(stage.options["device"]).partition(":")[2]
    return [int(number) if number.isdecimal() else 0]


def _on_devices(stage: StageDeployment) -> bool:
    return str(stage.options.get("device")).startswith("cuda")


def _refused(stage: StageDeployment, name: str, value: object, limit: str) -> StreamSynthError:
    return invalid_value(f"{stage.stage.name}.{name}", value, limit)
