"""Several ranks with one model, in processes: parts of blocks gathered, whole blocks on each host, and FSDP2."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from streamsynth import environment
from streamsynth.bench.report import Report
from streamsynth.bench.sharing_rank import SharingLoad

_TIMEOUT_S = 540


def bench_sharing(load: SharingLoad) -> Report:
    """Blocking. Raises RuntimeError, with what it wrote, if a rank fails."""
    with tempfile.TemporaryDirectory() as folder:
        given = msgspec.json.encode(msgspec.structs.replace(load, store=str(Path(folder) / "store")))
        ranks = [_start(rank, given) for rank in range(load.ranks)]
        try:
            wrote = [rank.communicate(timeout=_TIMEOUT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    for rank, (_, error) in zip(ranks, wrote, strict=True):
        if rank.returncode:
            raise RuntimeError(error.decode()[-2000:])
    return Report("offload-sharing", json.loads(wrote[0][0].splitlines()[-1]))


def _start(rank: int, given: bytes) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "streamsynth.bench.sharing_rank", str(rank)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment.child_environment(),
    )
    assert process.stdin is not None
    process.stdin.write(given)
    process.stdin.close()
    process.stdin = None
    return process
