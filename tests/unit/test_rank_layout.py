"""How many ranks a stage has, what they are to each other, and what is refused before one of them begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_pipelines.clips import FAMILIES

from streamsynth.config.deployment import check_threads
from streamsynth.config.plan import plan
from streamsynth.engine.parallel.layout import Layout
from streamsynth.engine.parallel.seat import LeadingSeat, Seat
from streamsynth.environment import visible_devices
from streamsynth.errors import StreamSynthError
from streamsynth.models.diffusers.loading import load_clips
from streamsynth.models.diffusers.sequence import check_sequence
from streamsynth.workers.launchers import ThreadLauncher


@pytest.mark.parametrize(("num_gpus", "ulysses", "replicas"), [(8, 2, 4), (4, 4, 1), (4, 1, 4), (1, 1, 1), (6, 3, 2)])
def test_all_ranks_are_in_use_and_the_number_of_replicas_is_inferred(
    num_gpus: int, ulysses: int, replicas: int
) -> None:
    """T4.1, PAR-2"""
    layout = Layout.infer(num_gpus, ulysses_degree=ulysses)
    assert layout == Layout.infer(num_gpus, ulysses_degree=ulysses, data_parallel_size=replicas)
    assert (layout.data_parallel, layout.size) == (replicas, num_gpus)
    assert [layout.replica(rank) for rank in range(num_gpus)] == [rank // ulysses for rank in range(num_gpus)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_gpus": 8, "ulysses_degree": 3}, "ulysses_degree is 3; it must be a divisor of num_gpus, which is 8"),
        ({"num_gpus": 2, "ulysses_degree": 0}, "ulysses_degree is 0; it must be a divisor"),
        ({"num_gpus": 2, "ulysses_degree": 4}, "ulysses_degree is 4; it must be a divisor"),
        (
            {"num_gpus": 8, "ulysses_degree": 2, "data_parallel_size": 2},
            "data_parallel_size is 2; it must be 4, what num_gpus 8 by ulysses_degree 2 comes to",
        ),
        ({"num_gpus": 1, "data_parallel_size": 2}, "data_parallel_size is 2; it must be 1"),
    ],
)
def test_sizes_that_do_not_come_out_even_are_refused(given: dict[str, int], said: str) -> None:
    """T4.2, PAR-2"""
    with pytest.raises(StreamSynthError, match=said):
        Layout.infer(**given)


def test_replicas_share_host_memory_and_without_them_the_ranks_of_a_sequence() -> None:
    """T6.7, PAR-1"""
    assert Layout.infer(4, ulysses_degree=4).sharing() == [[0, 1, 2, 3]]
    assert Layout.infer(4).sharing() == [[0, 1, 2, 3]]
    assert Layout.infer(4, ulysses_degree=2).sharing() == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ulysses_degree": 3}, "ulysses_degree is 3"),
        ({"data_parallel_size": 1}, "data_parallel_size is 1; it must be 2"),
        ({"ulysses_degree": 2, "step_skipping": {"method": "measure"}}, "empty where ulysses_degree"),
        ({"max_requests": 2}, "max_requests is 2; it must be 1 where there are several ranks"),
        ({"sharing": "sharded"}, "sharing is 'sharded'; it must be auto where nothing is offloaded"),
        ({"offload": True, "sharing": "some"}, "sharing is 'some'"),
        ({"offload": True, "sharing": "sharded", "resident_blocks": 1}, "resident_blocks is 1; it must be 0"),
    ],
)
def test_what_ranks_cannot_do_together_is_refused_before_they_meet(changed: dict[str, Any], said: str) -> None:
    """T6.5: by the names of the options."""
    given = {"folder": "", "device": "cpu", "dtype": "float32", "sizes": [], "max_steps": 2, "max_requests": 1}
    seat = LeadingSeat.__new__(LeadingSeat)
    Seat.__init__(seat, 0, 2, "/nowhere")
    with pytest.raises(StreamSynthError, match=said):
        load_clips(**{**given, **changed}, seat=seat)


def test_a_model_that_runs_in_one_process_refuses_ranks_by_name() -> None:
    with pytest.raises(
        StreamSynthError, match="num_gpus is 2; it must be 1: this model runs in one process"
    ) as refused:
        plan(["sine"], (), ["tone.num_gpus=2"])
    assert refused.value.param == "tone.num_gpus"


def test_every_rank_counts_towards_the_machine_s_cores() -> None:
    deployments = plan(["diffusers"], (), ["denoiser.num_gpus=4", "denoiser.threads=2"])
    check_threads(deployments, 8)
    with pytest.raises(StreamSynthError, match="threads is 8; it must be at most 4 in all"):
        check_threads(deployments, 4)
    check_threads(plan(["diffusers"], (), ["denoiser.num_gpus=4"]), 1)


def test_devices_are_those_that_the_server_sees_as_cuda_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices() == tuple(str(number) for number in range(len(list(Path("/dev").glob("nvidia[0-9]*")))))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert visible_devices() == ("4", "6")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,-1,7")
    assert visible_devices() == ("4", "6")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_devices() == ()


def test_ranks_are_processes() -> None:
    with pytest.raises(StreamSynthError, match="they are processes"):
        ThreadLauncher().launch("denoiser", ranks=2, devices=None, threads=1, memory_bytes=1 << 20)


@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("hunyuan-video", "HunyuanVideoTransformer3DModel"),
        ("cogvideox", "CogVideoXTransformer3DModel"),
        ("sdxl", "UNet2DConditionModel"),
        ("sdxl-image-to-image", "UNet2DConditionModel"),
        ("sd3", "SD3Transformer2DModel"),
        ("z-image", "ZImageTransformer2DModel"),
        ("pixart-sigma", "PixArtTransformer2DModel"),
        ("sana", "SanaTransformer2DModel"),
    ],
)
def test_a_pipeline_without_a_plan_for_its_sequence_is_refused_by_name(family: str, model: str) -> None:
    limit = f"it must be 1: diffusers has no plan to divide the sequence of {model}"
    with pytest.raises(StreamSynthError, match=limit):
        check_sequence(FAMILIES[family].build(), Layout.infer(2, ulysses_degree=2))
