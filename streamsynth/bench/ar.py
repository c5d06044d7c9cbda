"""`bench ar`: how fast a talker makes frames, one stream and many, beside transformers on the same weights."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from streamsynth.bench.ar_profile import kernel_rows
from streamsynth.bench.ar_sides import Generated, Side, StreamSynthSide, TransformersSide, in_turn
from streamsynth.bench.report import Panel, Report, Row, Value
from streamsynth.bench.statistics import quantile
from streamsynth.engine.kv.sizing import KvBudget, MeasuredDevice
from streamsynth.models.csm.loop import PAGE_SIZE, LoopSizes, open_loop, page_shape
from streamsynth.models.csm.model import CsmTalker
from streamsynth.models.csm.weights import load_talker

OURS = "streamsynth"
FLOAT8 = "streamsynth, float8 pages"
THEIRS = "transformers"
COMPILED = "transformers, static cache, compiled"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArLoad:
    """`folder` is in the Hugging Face layout of CSM. Every stream has a prompt of `context` text tokens and draws
    `frames` frames, greedily at `temperature` 0; the sides take turns, `rounds` times.

    `frame_rate` is the codec's, for the real-time factor. transformers draws for the numbers of streams in `theirs`,
    and compiled for one stream if `compiled`. `float8` adds our own side with pages of float8. `profiled` adds a table
    of the kernels of a step, for each number of streams, one kernel after the other.
    """

    folder: Path
    frame_rate: float
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    streams: Sequence[int] = (1, 2, 4, 8)
    theirs: Sequence[int] = (1, 8)
    context: int = 50
    frames: int = 50
    rounds: int = 3
    temperature: float = 0.0
    top_k: int = 50
    compiled: bool = False
    float8: bool = False
    profiled: bool = False


def bench_ar(load: ArLoad) -> list[Report]:
    """Blocking."""
    torch.set_num_threads(load.threads)
    talker = load_talker(load.folder, dtype=getattr(torch, load.dtype), device=load.device)
    weights = sum(weight.nbytes for weight in (*talker.parameters(), *talker.buffers()))
    notes = [f"weights {weights / 1e6:.0f} MB"]
    sizes = LoopSizes(
        gang_rows=1,
        max_rows=max(load.streams),
        max_tokens=512,
        max_model_len=load.context + load.frames,
    )
    own = _own_side(talker, sizes, load)
    sides: dict[str, Side] = {OURS: own}
    if load.float8:
        sides[FLOAT8] = _own_side(talker, replace(sizes, float8=True), load)
    notes.append(_memory_note(load.device))
    counts = dict.fromkeys(sides, load.streams) | {THEIRS: load.theirs, COMPILED: (1,) if load.compiled else ()}
    sides |= {name: _their_side(load, compiled=name == COMPILED) for name in (THEIRS, COMPILED) if counts[name]}
    vocabulary = talker.config.text_vocab_size
    found = _measure(sides, counts, vocabulary, load)
    notes += _agreement(found) if load.temperature == 0 else []
    notes.append(_cancel_note(own, vocabulary, load))
    rows = list(_rows(found, load))
    settings = {field: str(getattr(load, field)) for field in ("device", "dtype", "threads", "context", "frames")}
    report = Report("ar", rows, [_panel(rows, load.streams)], notes, settings | {"folder": load.folder.name})
    if not load.profiled:
        return [report]
    apart = _own_side(talker, replace(sizes, overlap=False), load)
    return [report, *_profiles(apart, vocabulary, load)]


def _own_side(talker: CsmTalker, sizes: LoopSizes, load: ArLoad) -> StreamSynthSide:
    """With room for all streams at their full length, and for the page that the planner keeps free for each."""
    pages = 1 + max(load.streams) * (1 + -(-(load.context + load.frames) // PAGE_SIZE))
    nbytes = page_shape(talker, float8=sizes.float8).nbytes(pages, talker.projector.weight)
    device = MeasuredDevice(KvBudget(nbytes, None), torch.device(load.device))
    return StreamSynthSide(talker, open_loop(talker, sizes, device), temperature=load.temperature, top_k=load.top_k)


def _their_side(load: ArLoad, *, compiled: bool) -> TransformersSide:
    return TransformersSide(
        load.folder,
        dtype=getattr(torch, load.dtype),
        device=load.device,
        temperature=load.temperature,
        top_k=load.top_k,
        compiled=compiled,
    )


def _measure(
    sides: Mapping[str, Side], counts: Mapping[str, Sequence[int]], vocabulary: int, load: ArLoad
) -> dict[tuple[str, int], list[Generated]]:
    """By side and number of streams."""
    found: dict[tuple[str, int], list[Generated]] = {}
    for streams in sorted({*load.streams, *load.theirs}):
        runs = {
            name: partial(side.generate, prompts(vocabulary, streams, load.context), load.frames)
            for name, side in sides.items()
            if streams in counts[name]
        }
        for run in runs.values():
            run()  # what loads or compiles lazily has done so
        found |= {(name, streams): made for name, made in in_turn(runs, load.rounds).items()}
    return found


def _profiles(side: StreamSynthSide, vocabulary: int, load: ArLoad) -> Iterator[Report]:
    for streams in load.streams:
        given = prompts(vocabulary, streams, load.context)

        def run(given: torch.Tensor = given) -> int:
            side.generate(given, load.frames)
            return side.steps

        yield Report(f"ar-kernels-{streams}", list(kernel_rows(run)))


def prompts(vocabulary: int, streams: int, length: int) -> torch.Tensor:
    """Texts that differ from their first token on, so that nothing is shared."""
    return torch.randint(vocabulary, (streams, length), generator=torch.Generator().manual_seed(streams))


def frame_rate_of(folder: Path) -> float:
    """Of the codec that a CSM folder names."""
    codec = json.loads((folder / "config.json").read_text())["codec_config"]
    stride = 2  # of the codec's own down-sampling, in encoder steps
    for ratio in codec["upsampling_ratios"]:
        stride *= ratio
    rate: float = codec["sampling_rate"] / stride
    return rate


def _rows(found: Mapping[tuple[str, int], list[Generated]], load: ArLoad) -> Iterator[Row]:
    """`alone` is against transformers with one stream after the other, `batch` against its batch of the same size."""
    alone = _speed(found.get((THEIRS, 1)), 1)
    for (name, streams), made in found.items():
        speed = _speed(made, streams)
        assert speed is not None
        batch = _speed(found.get((THEIRS, streams)), streams)
        yield {
            "side": name,
            "streams": streams,
            "frames/s": speed,
            "steps/s": speed / streams,
            "ms a step": 1000 * streams / speed,
            "first frame ms": 1000 * quantile([each.first_s for each in made], 0.5),
            "times real time": speed / load.frame_rate,
            "RTF of each": load.frame_rate * streams / speed,
            "over transformers alone": None if alone is None else speed / alone,
            "over its batch": None if batch is None else speed / batch,
        }


def _speed(made: Sequence[Generated] | None, streams: int) -> float | None:
    """Frames a second of all streams, of the median round."""
    return None if made is None else streams / quantile([each.frame_s for each in made], 0.5)


def _agreement(found: Mapping[tuple[str, int], list[Generated]]) -> Iterator[str]:
    """Greedy frames are the same until rounding decides between two codes."""
    for (name, streams), made in found.items():
        theirs = found.get((THEIRS, streams))
        if theirs is None or name == THEIRS:
            continue
        same = (made[0].frames == theirs[0].frames).all(2).all(0)
        count = int(same.long().cumprod(0).sum())
        yield f"{name} and transformers, {streams} streams: the first {count} of {len(same)} frames are equal"


def _cancel_note(side: StreamSynthSide, vocabulary: int, load: ArLoad) -> str:
    """Each after another number of steps of one stream."""
    (prompt,) = prompts(vocabulary, 1, load.context)
    idle = [1000 * side.cancel(prompt, steps) for steps in range(2, load.frames + 1)]
    return f"{len(idle)} cancels: the device idle after p50 {quantile(idle, 0.5):.2f} ms, at most {max(idle):.2f} ms"


def _memory_note(device: str) -> str:
    """Of our own sides: transformers has loaded nothing yet."""
    if device == "cpu":
        return f"ours: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB resident at most"
    return f"ours: {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB of device memory at most, pages included"


def _panel(rows: Sequence[Row], streams: Sequence[int]) -> Panel:
    def speeds(name: str) -> list[float | None]:
        at: dict[Value, Value] = {row["streams"]: row["frames/s"] for row in rows if row["side"] == name}
        return [float(value) if isinstance(value := at.get(count), float) else None for count in streams]

    names = list(dict.fromkeys(str(row["side"]) for row in rows))
    return Panel("frames a second", "streams", "frames/s", list(streams), {name: speeds(name) for name in names})
