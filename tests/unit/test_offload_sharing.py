"""Ranks that share one model on their hosts: each gets what it would alone, and nobody waits for ever."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from offload_models import given, network
from sharing_rank import SHARDED, listed, of_both, request

from streamsynth.engine.offload.offloaded import offload_blocks
from streamsynth.engine.offload.options import OffloadOptions
from streamsynth.engine.offload.ranks import Ranks
from streamsynth.engine.offload.shared import offload_shared_blocks
from streamsynth.engine.quant.convert import quantise_linears
from streamsynth.engine.quant.recipe import Recipe
from streamsynth.errors import StreamSynthError

TESTS = Path(__file__).parents[1]


def launch(size: int, store: Path, fate: str) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "sharing_rank.py", str(rank), str(size), str(store), fate, "cpu"],
            cwd=TESTS,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


@pytest.fixture(scope="module", params=[2, 4])
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every rank says of all its waves, by rank."""
    ranks = launch(request.param, tmp_path_factory.mktemp("ranks") / "store", "lives")
    said = []
    for rank in ranks:
        out, err = rank.communicate(timeout=120)
        assert rank.returncode == 0, err
        said.append(json.loads(out.splitlines()[-1]))
    return said


@pytest.fixture(scope="module")
def alone() -> Callable[[int], list[float] | None]:
    with torch.inference_mode():
        model = network()
        results = [listed(request(model, seed)) for seed in range(4)]
    return results.__getitem__


def of_every_rank(said: list[dict[str, Any]], wave: str) -> list[Any]:
    return [rank[wave]["result"] for rank in said]


def test_every_rank_gets_its_own_request_as_if_alone(lived: list[dict[str, Any]], alone: Callable[[int], Any]) -> None:
    """DL-1, DL-4, DL-7, T6.9, T6.10: five waves, bit for bit."""
    expected = [alone(rank) for rank in range(len(lived))]
    for count in range(5):
        assert of_every_rank(lived, f"all {count}") == expected
        assert all(rank[f"all {count}"]["failed"] == [] for rank in lived)


def test_every_rank_keeps_its_part_of_the_weights(lived: list[dict[str, Any]]) -> None:
    with torch.inference_mode():
        whole = offload_blocks(network()).host_bytes
    for rank in lived:
        assert whole / len(lived) <= rank["host_bytes"] <= whole / len(lived) + 5 * 256


def test_ranks_without_a_request_take_part(lived: list[dict[str, Any]], alone: Callable[[int], Any]) -> None:
    """DL-16, V60"""
    assert of_every_rank(lived, "one") == [alone(0)] + [None] * (len(lived) - 1)
    assert of_every_rank(lived, "none") == [None] * len(lived)


def test_a_request_that_fails_or_is_cancelled_ends_alone(
    lived: list[dict[str, Any]], alone: Callable[[int], Any]
) -> None:
    """In the second pass, in every block: the others end as they would have, and all know whose failed."""
    last = len(lived) - 1
    for block in range(5):
        wave = f"block {block} fails"
        assert of_every_rank(lived, wave) == [alone(rank) for rank in range(last)] + [None]
        assert [rank[wave]["error"] for rank in lived] == [None] * last + ["injected"]
        assert all(rank[wave]["failed"] == [last] for rank in lived)


def test_a_request_may_skip_blocks_and_passes(lived: list[dict[str, Any]], alone: Callable[[int], Any]) -> None:
    last = len(lived) - 1
    with torch.inference_mode():
        model = network()
        short = listed(request(model, last, 1))
        model.runs = [0, 3]
        skipping = listed(request(model, last))
    others = [alone(rank) for rank in range(last)]
    assert of_every_rank(lived, "last skips") == [*others, skipping]
    assert of_every_rank(lived, "last is short") == [*others, short]


def test_a_request_that_wants_more_passes_than_agreed_fails_alone(
    lived: list[dict[str, Any]], alone: Callable[[int], Any]
) -> None:
    last = len(lived) - 1
    assert of_every_rank(lived, "last is long") == [alone(rank) for rank in range(last)] + [None]
    assert "more passes than its wave has" in lived[last]["last is long"]["error"]


@pytest.mark.parametrize("wave", ["steps differ", "steps missing", "steps zero"])
def test_requests_whose_steps_are_not_the_same_are_refused_on_every_rank(
    wave: str, lived: list[dict[str, Any]], alone: Callable[[int], Any]
) -> None:
    """T6.8, DL-5, DL-6: and the next wave is served."""
    assert [rank[wave] for rank in lived] == ["invalid_value"] * len(lived)
    assert of_every_rank(lived, "after all that") == [alone(rank) for rank in range(len(lived))]


def test_the_model_does_not_run_outside_of_a_wave(lived: list[dict[str, Any]]) -> None:
    assert all("outside of a wave" in rank["outside"] for rank in lived)


def test_closing_rebuilds_the_model_on_every_rank(lived: list[dict[str, Any]], alone: Callable[[int], Any]) -> None:
    assert [rank["closed"] for rank in lived] == [alone(rank) for rank in range(len(lived))]


def test_auto_chooses_the_same_on_every_rank_by_what_it_measured(
    lived: list[dict[str, Any]], alone: Callable[[int], Any]
) -> None:
    """DL-15: rank-local, one rank runs while the others do nothing."""
    assert len({rank["auto"] for rank in lived}) == 1
    assert all(rank["auto"] == rank["auto probed"] for rank in lived)
    assert all((rank["local"], rank["local probed"]) == (False, None) for rank in lived)
    assert lived[0]["local alone"] == alone(0)


def test_a_rank_that_cannot_begin_tells_the_others(lived: list[dict[str, Any]]) -> None:
    """Outcomes are agreed before anyone raises."""
    last = len(lived) - 1
    assert all(rank["models differ"].startswith("invalid_value: module is") for rank in lived)
    assert lived[last]["no memory"].startswith("start_failed: cannot pin")
    for rank in lived[:last]:
        assert rank["no memory"].startswith(f"start_failed: rank {last} failed: start_failed: cannot pin")


def test_float8_layers_are_sharded_as_they_are(lived: list[dict[str, Any]]) -> None:
    """DLO-2, T6.2: finished weights and their scales."""
    with torch.inference_mode():
        model = network()
        quantise_linears(model, Recipe(ignored=("first", "last")))
        expected = [listed(request(model, rank)) for rank in range(len(lived))]
    assert [rank["float8"] for rank in lived] == expected


def test_ranks_pass_several_models_as_often_as_each_needs(lived: list[dict[str, Any]]) -> None:
    """In another order too; what fails on one rank ends there, and every pass is gone through by all."""
    last = len(lived) - 1
    with torch.inference_mode():
        expected = [listed(of_both([network(), network(blocks=3, seed=1)], rank)) for rank in range(len(lived))]
    assert [rank["turns 0"] for rank in lived] == expected
    assert [rank["turns 1"] for rank in lived] == [*expected[:last], "injected"]
    taken = [rank["turns taken"] for rank in lived]
    assert [(models, passes) for models, passes, _ in taken] == [
        *((2, 2 * max(2, rank + 1)) for rank in range(last)),
        (2, 1 + last + 1),
    ]


@pytest.mark.parametrize(("size", "fate"), [(2, "killed"), (4, "killed"), (2, "stopped")])
def test_a_lost_rank_fails_the_wave_on_the_others(size: int, fate: str, tmp_path: Path) -> None:
    """Within 15 s; and the next wave fails at once: only new processes help."""
    ranks = launch(size, tmp_path / "store", fate)
    *others, last = ranks
    try:
        if fate == "killed":
            last.wait(timeout=60)
            began = time.monotonic()
            said = [json.loads(rank.communicate(timeout=15)[0].splitlines()[-1]) for rank in others]
            assert time.monotonic() - began < 15
        else:
            said = [json.loads(rank.communicate(timeout=60)[0].splitlines()[-1]) for rank in others]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for rank_said in said:
        assert rank_said["first"]["error"] is None
        assert (rank_said["fate"], rank_said["next"]) == ("worker_died", "worker_died")


def test_one_rank_alone_shards_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6.6: no collective moves a block."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store, timeout=timedelta(seconds=5))
    try:
        assert dist.group.WORLD is not None
        ranks = Ranks(dist.group.WORLD)
        monkeypatch.delattr(Ranks, "gather")
        model = network()
        with torch.inference_mode():
            expected = model(given())
            shared = offload_shared_blocks(model, ranks, SHARDED)
            assert torch.equal(model(given()), expected)
        assert (shared.waves, shared.probed) == (None, None)
    finally:
        dist.destroy_process_group()


def test_what_cannot_be_sharded_is_refused() -> None:
    """T6.5"""
    with pytest.raises(StreamSynthError, match="resident_blocks is 1; it must be 0 where blocks are sharded"):
        OffloadOptions(sharing="sharded", resident_blocks=1)
    with pytest.raises(StreamSynthError, match="host is 'in_place'; it must be pinned where blocks are sharded"):
        OffloadOptions(sharing="sharded", host="in_place")
    with pytest.raises(StreamSynthError, match="sharing is 'some'"):
        OffloadOptions(sharing="some")  # type: ignore[arg-type]
