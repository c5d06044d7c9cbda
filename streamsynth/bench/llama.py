"""One text at a time on the CPU: tokens a second of ours, transformers and vLLM, and what the memory could give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamsynth.bench import llama_side
from streamsynth.bench.report import Report, Row
from streamsynth.bench.statistics import quantile
from streamsynth.environment import child_environment
from streamsynth.errors import invalid_value

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaLoad:
    """`folder` is in the Hugging Face layout. `vllm` is the Python of an environment that has it, or None.

    Every side makes `tokens` tokens greedily, `rounds` times, the sides taking turns.
    """

    folder: Path
    dtypes: Sequence[str] = ("float32", "bfloat16")
    threads: Sequence[int] = (1, 2)
    tokens: int = 128
    rounds: int = 5
    vllm: Path | None = None

    def __post_init__(self) -> None:
        for dtype in self.dtypes:
            if dtype not in _ITEM_BYTES:
                raise invalid_value("dtype", dtype, " or ".join(_ITEM_BYTES))


def bench_llama(load: LlamaLoad) -> Report:
    """Blocking. Raises SideFailed if a side cannot be started or dies."""
    rows: list[Row] = []
    notes: list[str] = []
    for dtype in load.dtypes:
        for threads in load.threads:
            rows += _compare(load, dtype, threads, notes)
    settings = {"folder": load.folder.name, "tokens": load.tokens, "rounds": load.rounds, "prompt": llama_side.PROMPT}
    return Report("llama", rows, notes=notes, settings=settings)


_VLLM = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
"""One process, whose threads run where the others' do."""


class SideFailed(Exception):
    """What a side said last."""


def _compare(load: LlamaLoad, dtype: str, threads: int, notes: list[str]) -> list[Row]:
    pythons = {"streamsynth": sys.executable, "transformers": sys.executable, "memory": sys.executable}
    if load.vllm is not None:
        pythons["vllm"] = str(load.vllm)
    answers: dict[str, list[dict[str, Any]]] = {side: [] for side in pythons}
    before = os.getloadavg()[0]
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(_side(python, name, load, dtype, threads)) for name, python in pythons.items()
        }
        for _ in range(load.rounds):
            for name, side in sides.items():
                answers[name].append(_ask(side, name))
    notes.append(f"{dtype}, {threads} threads: load average {before:.1f} before, {os.getloadavg()[0]:.1f} after")
    notes += _disagreements(answers, f"{dtype}, {threads} threads")
    gigabytes = _weight_bytes(load.folder, dtype) / 1e9
    memory = 1 / _least(answers["memory"])["wall_s"]
    rows: list[Row] = []
    for name in sides:
        speeds: dict[str, float | None] = dict.fromkeys(_SPEEDS) | {"GB/s": memory}
        if name != "memory":
            speeds = _speeds(answers[name], answers.get("vllm"), load.tokens, gigabytes, memory)
        rows.append({"side": name, "dtype": dtype, "threads": threads, **speeds})
    return rows


@contextmanager
def _side(python: str, name: str, load: LlamaLoad, dtype: str, threads: int) -> Iterator[subprocess.Popen[str]]:
    """A process that is ready; ends with the context."""
    command = [python, "-P", llama_side.__file__, name, str(load.folder), dtype, str(threads), str(load.tokens)]
    settings = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": str(threads), **_VLLM}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child_environment(settings),
    ) as process:
        try:
            _read(process, name)
            yield process
        finally:
            process.kill()


def _ask(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return _read(process, name)


def _read(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SideFailed(f"{name} ended with status {process.wait()}: {process.args!r}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _least(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The quickest round, by the clock and by the CPU time: others had more of somebody else's work in them."""
    return {name: min(answer[name] for answer in answers) for name in ("wall_s", "cpu_s")}


_SPEEDS = ("tokens/s", "median", "over vllm", "tokens per CPU s", "GB/s", "of memory")


def _speeds(
    answers: Sequence[dict[str, Any]],
    vllm: Sequence[dict[str, Any]] | None,
    tokens: int,
    gigabytes: float,
    memory: float,
) -> dict[str, float | None]:
    """Of the best round, but for the median. Every token reads `gigabytes`, and `memory` is in GB/s."""
    least = {name: seconds / tokens for name, seconds in _least(answers).items()}
    speeds = (
        1 / least["wall_s"],
        tokens / quantile([answer["wall_s"] for answer in answers], 0.5),
        None if vllm is None else _least(vllm)["wall_s"] / (tokens * least["wall_s"]),
        1 / least["cpu_s"],
        gigabytes / least["wall_s"],
        gigabytes / least["wall_s"] / memory,
    )
    return dict(zip(_SPEEDS, speeds, strict=True))


def _weight_bytes(folder: Path, dtype: str) -> int:
    """What every token reads: all weights, of which a tied head is the embedding."""
    from safetensors import safe_open

    from streamsynth.models.llama.config import LlamaConfig
    from streamsynth.models.llama.weights import checkpoint_files

    tied = LlamaConfig.from_hf(json.loads((folder / "config.json").read_text())).tied
    count = 0
    for path in checkpoint_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # safe_open is no mapping
                if tied or name != "model.embed_tokens.weight":
                    rows, *columns = file.get_slice(name).get_shape()
                    count += rows * (columns[0] if columns else 1)
    return count * _ITEM_BYTES[dtype]


def _disagreements(answers: dict[str, list[dict[str, Any]]], where: str) -> Iterator[str]:
    """Greedy tokens are the same until rounding decides between two."""
    ours = answers["streamsynth"][0]["tokens"]
    for name, given in answers.items():
        theirs = given[0]["tokens"]
        first = next((place for place, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        if first is not None:
            yield f"{where}: {name} says another token than ours from place {first} on"
