"""Clips on two ranks of which one is worse off: all of them know what became of each, and the others do not suffer."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranked_rank import BAD_SEED, FITTING
from small_pipelines.clips import called_directly, request, save

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save("wan", tmp_path_factory.mktemp("wan"))


@pytest.fixture(scope="module", params=["sharded", "local"])
def said(folder: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What rank 0 says of its requests, in step with the other and apart."""
    with contextlib.ExitStack() as closing:
        store = os.memfd_create("ranks")
        closing.callback(os.close, store)
        peers = [closing.enter_context(peer) for peer in socket.socketpair()]
        ranks = [
            subprocess.Popen(
                [
                    sys.executable,
                    "ranked_rank.py",
                    str(rank),
                    str(store),
                    str(peer.fileno()),
                    str(folder),
                    request.param,
                ],
                cwd=TESTS,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=(store, peer.fileno()),
            )
            for rank, peer in enumerate(peers)
        ]
    wrote = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], wrote
    found: dict[str, Any] = json.loads(wrote[0][0].splitlines()[-1])
    return found


def test_what_one_rank_has_no_memory_for_is_admitted_on_none(said: dict[str, Any]) -> None:
    """ENG-5: the run at start-up is made on all of them at once."""
    assert said["envelope"] == FITTING


def test_a_clip_that_fails_on_its_rank_ends_alone_and_by_its_own_words(said: dict[str, Any]) -> None:
    error = said[str(BAD_SEED)]["error"]
    assert error["code"] == "engine_failed"
    assert error["message"].startswith("the engine failed with RuntimeError: a kernel failed ö")
    assert said[str(BAD_SEED)]["pictures"] is None


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_the_others_are_made_as_if_alone(seed: int, said: dict[str, Any], folder: Path) -> None:
    """On rank 0, beside the one that failed, and on the rank where it failed, after it."""
    expected = called_directly("wan", folder, request("wan", seed=seed, num_frames=5, steps=4))
    assert said[str(seed)]["error"] is None
    assert said[str(seed)]["steps"] == [1, 2, 3, 4]
    np.testing.assert_array_equal(np.array(said[str(seed)]["pictures"], np.uint8), expected.flatten())
