"""Which devices the stages of one server have, and what is refused before one of them starts."""

from __future__ import annotations

import pytest

from streamsynth.config.devices import assign_devices
from streamsynth.config.plan import plan
from streamsynth.errors import ErrorCode, StreamSynthError
from streamsynth.runtime import Runtime
from streamsynth.workers.launchers import ThreadLauncher
from streamsynth.workers.stage import WorkerStage


def devices(count: int, *sets: str, models: list[str] | None = None) -> dict[str, list[int]]:
    """What each stage gets, by its name."""
    deployments = assign_devices(plan(models or ["diffusers"], (), sets), count)
    return {name: list(stage.devices) for each in deployments for name, stage in each.stages.items()}


def test_ranks_have_the_first_devices_that_are_nobody_else_s() -> None:
    """T1.14: derived from their number."""
    assert devices(8, "denoiser.num_gpus=8") == {"denoiser": list(range(8))}
    assert devices(8, "denoiser.num_gpus=2") == {"denoiser": [0, 1]}


def test_ranks_stay_off_the_device_of_a_stage_of_one_process() -> None:
    """Which is the first, where it says no other."""
    both = {"models": ["diffusers", "csm"]}
    assert devices(3, "diffusers.denoiser.num_gpus=2", **both)["denoiser"] == [1, 2]
    moved = [f"csm.{stage}.device=cuda:1" for stage in ("talker", "codec")]
    assert devices(3, "diffusers.denoiser.num_gpus=2", *moved, **both)["denoiser"] == [0, 2]
    named = [f"csm.{stage}.devices=[2]" for stage in ("talker", "codec")]
    assert devices(3, "diffusers.denoiser.num_gpus=2", *named, **both) == {
        "denoiser": [0, 1],
        "talker": [2],
        "codec": [2],
    }


def test_a_stage_on_the_cpu_takes_no_device_from_ranks() -> None:
    both = {"models": ["diffusers", "tiny-world", "hibari"]}
    assert devices(2, "diffusers.denoiser.num_gpus=2", **both)["denoiser"] == [0, 1]
    assert devices(0, "diffusers.denoiser.num_gpus=2", "diffusers.denoiser.device=cpu", **both)["denoiser"] == []


def test_what_is_named_is_taken_as_said() -> None:
    assert devices(4, "denoiser.num_gpus=2", "denoiser.devices=[3, 1]") == {"denoiser": [3, 1]}


@pytest.mark.parametrize(
    ("count", "sets", "models", "said"),
    [
        (2, ["denoiser.num_gpus=4"], ["diffusers"], "denoiser.num_gpus is 4; it must be at most 2, the devices that"),
        (0, ["denoiser.num_gpus=2"], ["diffusers"], "denoiser.num_gpus is 2; it must be at most 0"),
        (2, ["diffusers.denoiser.num_gpus=2"], ["diffusers", "csm"], "at most 1, .* there are: 1 of the 2 are other"),
        (2, ["denoiser.num_gpus=2", "denoiser.devices=[0, 2]"], ["diffusers"], "of the 2 that there are"),
        (4, ["denoiser.num_gpus=2", "denoiser.devices=[1]"], ["diffusers"], "as many as num_gpus, which is 2"),
        (4, ["denoiser.devices=[1]", "denoiser.device=cpu"], ["diffusers"], "this stage runs on the CPU"),
        (4, ["denoiser.devices=[1]", "denoiser.device=cuda:1"], ["diffusers"], "device is 'cuda:1'; it must be cuda"),
        (4, ["tone.devices=[1]"], ["sine"], "tone.devices is \\[1\\]; it must be left out"),
    ],
)
def test_devices_that_there_are_not_are_refused_with_the_number_that_there_are(
    count: int, sets: list[str], models: list[str], said: str
) -> None:
    with pytest.raises(StreamSynthError, match=said) as refused:
        devices(count, *sets, models=models)
    assert refused.value.code is ErrorCode.INVALID_VALUE


def test_stages_that_share_a_worker_name_the_same_devices() -> None:
    with pytest.raises(StreamSynthError, match="false where the two stages name different devices"):
        plan(["csm"], (), ["codec.shares_worker=true", "codec.devices=[1]"])


def test_a_server_refuses_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    with pytest.raises(StreamSynthError, match="at most 1, the devices that there are"):
        Runtime(plan(["diffusers"], (), ["denoiser.num_gpus=2"]))


def test_a_rank_sees_its_device_by_cuda_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU it sees none; a stage of one process that names none sees what the server sees."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-ab,6")
    for sets, seen in (
        (["denoiser.num_gpus=2", "denoiser.devices=[2, 1]"], ("6", "GPU-ab")),
        (["denoiser.num_gpus=2", "denoiser.device=cpu"], ("", "")),
        (["denoiser.devices=[1]"], ("GPU-ab",)),
        ([], None),
    ):
        (deployment,) = assign_devices(plan(["diffusers"], (), sets), 3)
        stage = WorkerStage("diffusers.denoiser", deployment.stages["denoiser"], ThreadLauncher())
        assert stage.supervisor.spec.devices == seen
