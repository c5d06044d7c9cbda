"""`streamsynth bench`: measure speech, the wire between processes, many sessions, video, and talkers alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamsynth import environment
from streamsynth.config.registry import DEFAULT_PIPELINE
from streamsynth.console import refuse_beside_url
from streamsynth.errors import invalid_value

if TYPE_CHECKING:
    from streamsynth.bench.report import Report
    from streamsynth.bench.sessions import SessionsLoad
    from streamsynth.bench.soak import SoakLoad

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Measure: speech, the wire, many sessions, video, talkers."
)

UrlOption = Annotated[str | None, typer.Option(help="Measure the server there instead of starting one.")]
OutputOption = Annotated[Path, typer.Option(metavar="FOLDER", help="Where the JSON files and the plots go.")]
SecondsOption = Annotated[float, typer.Option(min=0.1, help="How long each load lasts.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="STAGE.FIELD=VALUE", help="As for serve; may be repeated.")
]
StartTimeoutOption = Annotated[float | None, typer.Option(min=1.0, help="Until the server is ready; 60 if not given.")]

QUICK_SECONDS = 4.0
OUTPUT = Path("out/bench")
OFFLOAD_PARTS = ("passes", "linears", "load")
SHARING = "sharing"


@app.command()
def speech(
    model: Annotated[str, typer.Option(metavar="NAME")] = DEFAULT_PIPELINE,
    clients: Annotated[
        list[int] | None, typer.Option(min=1, help="A closed loop of so many clients; may be repeated.")
    ] = None,
    listeners: Annotated[
        list[int] | None, typer.Option(min=1, help="The same, each hearing the speech to its end; may be repeated.")
    ] = None,
    rate: Annotated[
        list[float] | None, typer.Option(min=0.001, help="An open loop of so many arrivals a second; may be repeated.")
    ] = None,
    seconds: SecondsOption = 20.0,
    cancels: Annotated[int, typer.Option(min=0)] = 20,
    text: Annotated[str | None, typer.Option(help="Say this each time.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="End each utterance there.")] = None,
    sets: SetOption = None,
    start_timeout_s: StartTimeoutOption = None,
    url: UrlOption = None,
    output: OutputOption = OUTPUT,
) -> None:
    """What listeners hear: time to first audio, RTF, underruns, cancels; in closed and open loops."""
    from streamsynth.bench.speech import SpeechLoad, bench_speech
    from streamsynth.bench.target import target

    refuse_beside_url(url, {"--set": sets and ", ".join(sets), "--start-timeout-s": start_timeout_s})
    chosen = bool(clients or listeners or rate)
    load = SpeechLoad(
        model=model,
        clients=clients or (() if chosen else (1, 2, 4)),
        listeners=listeners or (() if chosen else (4, 16)),
        rates=rate or (() if chosen else (1.0,)),
        seconds=seconds,
        cancels=cancels,
        text=text,
        max_new_tokens=max_new_tokens,
    )
    options = [argument for setting in sets or () for argument in ("--set", setting)]
    with target(url, environment.api_key(), "--model", model, *options, start_timeout_s=start_timeout_s or 60.0) as at:
        report = asyncio.run(bench_speech(at, load))
    _leave([report], output)


@app.command()
def wire(
    size: Annotated[
        list[int] | None, typer.Option(min=4, help="Bytes of the array, a multiple of 4; may be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each size and way is tried.")] = 2.0,
    output: OutputOption = OUTPUT,
) -> None:
    """One way from a filled array in one process to its sum in another, beside a plain pipe."""
    from streamsynth.bench.wire import SIZES, WireLoad, bench_wire

    for nbytes in size or ():
        if nbytes % 4:
            raise invalid_value("--size", nbytes, "a multiple of 4")
    _leave([bench_wire(WireLoad(sizes=size or SIZES, seconds=seconds))], output)


@app.command()
def sessions(
    count: Annotated[
        list[int] | None, typer.Option("--sessions", min=1, help="So many speak in real time; may be repeated.")
    ] = None,
    seconds: SecondsOption = 20.0,
    cancels: Annotated[int, typer.Option(min=1)] = 1000,
    busy: Annotated[
        bool | None, typer.Option("--busy/--no-busy", help="Cancel beside a busy voice worker too; not with --url.")
    ] = None,
    soak: Annotated[bool, typer.Option(help="The long run: 2,000 utterances, 2,000 aborts, 5,000 sessions.")] = True,
    quick: Annotated[bool, typer.Option(help="A minute: counters and leaks only, no figures to keep.")] = False,
    url: UrlOption = None,
    output: OutputOption = OUTPUT,
) -> None:
    """Many sessions on the sine model: lateness, cancels, stalled readers, and whether anything grows."""
    from streamsynth.bench.sessions import SessionsLoad
    from streamsynth.bench.soak import SoakLoad

    refuse_beside_url(url, {"--busy": busy or None})
    if quick:
        load = SessionsLoad(sessions=count or (20,), seconds=QUICK_SECONDS, cancels=200)
        soaking = SoakLoad(utterances=400, aborts=400, sessions=600, slopes=False)
    else:
        load = SessionsLoad(sessions=count or (1, 10, 50, 100), seconds=seconds, cancels=cancels)
        soaking = SoakLoad()
    beside = busy is not False and not quick and url is None
    reports = _sessions(url, load, soaking if soak or quick else None, busy=beside)
    _leave(reports, output)
    _check_counters(reports)


@app.command()
def video(
    model: Annotated[str, typer.Option(metavar="NAME")] = "paint",
    viewers: Annotated[list[int] | None, typer.Option(min=1, help="So many at once; may be repeated.")] = None,
    seconds: SecondsOption = 20.0,
    steer_every: Annotated[float, typer.Option(min=0.1, help="Seconds between a viewer's steers.")] = 3.0,
    transition_chunks: Annotated[int, typer.Option(min=0, help="Of each steer; 0 is a cut.")] = 0,
    format: Annotated[str, typer.Option(help="m4s or jpeg.")] = "m4s",  # noqa: A002 - the wire's own word
    sets: SetOption = None,
    start_timeout_s: StartTimeoutOption = None,
    url: UrlOption = None,
    output: OutputOption = OUTPUT,
) -> None:
    """Video in real time: first picture, chunks in time, stalls, and how soon a steer is seen, kept and recached."""
    from streamsynth.bench.target import target
    from streamsynth.bench.video import VideoLoad, bench_video

    refuse_beside_url(url, {"--set": sets and ", ".join(sets), "--start-timeout-s": start_timeout_s})
    load = VideoLoad(
        model=model,
        viewers=viewers or (1, 2),
        seconds=seconds,
        steer_every=steer_every,
        transition_chunks=transition_chunks,
        format=format,
    )
    options = [argument for setting in sets or () for argument in ("--set", setting)]
    with target(url, environment.api_key(), "--model", model, *options, start_timeout_s=start_timeout_s or 60.0) as at:
        report = asyncio.run(bench_video(at, load))
    _leave([report], output)
    _check_counters([report])


@app.command("random-csm")
def random_csm(folder: Annotated[Path, typer.Argument(help="Is made, or written over.")]) -> None:
    """Write a checkpoint of CSM-1B's shapes with random weights, whose audio never ends by itself (3.5 GB)."""
    from streamsynth.models.csm.random_folder import write_random_csm
    from streamsynth.models.csm.random_weights import CSM_1B
    from streamsynth.models.mimi.config import MimiConfig

    write_random_csm(folder, CSM_1B, MimiConfig())


@app.command("random-wan")
def random_wan(
    folder: Annotated[Path, typer.Argument(help="Is made, or written over.")],
    text_layers: Annotated[int, typer.Option(min=1, help="Of the text encoder, which has 24.")] = 24,
) -> None:
    """Write a Wan 2.1 1.3B checkpoint of random weights, with a tiny decoder beside the full one (13 GB)."""
    from streamsynth.bench.random_wan import WanSizes, write_random_wan
    from streamsynth.models.wan.text_encoder import TextEncoderConfig

    write_random_wan(folder, WanSizes(text_encoder=TextEncoderConfig(vocab_size=257, num_layers=text_layers)))


@app.command()
def rollout(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="As `bench random-wan` writes it.")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of every side.")] = 1,
    decoder: Annotated[list[str] | None, typer.Option(help="tiny or full; may be repeated.")] = None,
    videos: Annotated[list[int] | None, typer.Option(min=1, help="So many at once; may be repeated.")] = None,
    chunks: Annotated[int, typer.Option(min=1, help="Made by each once its window is full.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="First pictures waited for.")] = 3,
    width: Annotated[int, typer.Option(min=16)] = 832,
    height: Annotated[int, typer.Option(min=16)] = 480,
    alone: Annotated[bool, typer.Option(help="Without diffusers.")] = False,
    output: OutputOption = OUTPUT,
) -> None:
    """Video from one worker's engine, without a server: pictures a second, first pictures, where a chunk's time goes;
    its passes beside diffusers' transformer on the same weights."""
    from streamsynth.bench.rollout import DECODERS, RolloutLoad, bench_rollout
    from streamsynth.engine.opening import check_device
    from streamsynth.video import Size

    check_device(device, "--device")
    for name in decoder or ():
        if name not in DECODERS:
            raise invalid_value("--decoder", name, " or ".join(DECODERS))
    load = RolloutLoad(
        folder=folder,
        device=device,
        dtype=dtype,
        threads=threads,
        decoders=decoder or tuple(DECODERS),
        videos=videos or (1, 2),
        chunks=chunks,
        rounds=rounds,
        size=Size(width=width, height=height),
        theirs=not alone,
    )
    reports = bench_rollout(load)
    _leave(reports, output)
    _check_counters(reports)


@app.command()
def clips(
    folder: Annotated[Path, typer.Argument(help="A pipeline in diffusers' layout.")],
    width: Annotated[int, typer.Option(min=16)] = 512,
    height: Annotated[int, typer.Option(min=16)] = 512,
    frames: Annotated[int, typer.Option(min=1)] = 1,
    steps: Annotated[int, typer.Option(min=1)] = 4,
    count: Annotated[int, typer.Option(min=1, help="Requests a round.")] = 8,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    together: Annotated[list[int] | None, typer.Option(min=1, help="Made at once; may be repeated.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    dtype: Annotated[str, typer.Option()] = "bfloat16",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    output: OutputOption = OUTPUT,
) -> None:
    """Whole clips and images: the engine beside the same pipeline of diffusers called in a loop."""
    from streamsynth.bench.clips import ClipsLoad, bench_clips
    from streamsynth.engine.opening import check_device
    from streamsynth.video import Size

    check_device(device, "--device")
    load = ClipsLoad(
        folder=folder,
        size=Size(width=width, height=height),
        frames=frames,
        steps=steps,
        clips=count,
        rounds=rounds,
        together=together or (1, 2),
        device=device,
        dtype=dtype,
        threads=threads,
    )
    _leave([bench_clips(load)], output)


@app.command()
def offload(
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART", help="passes, linears, load, or sharing; may be repeated; default: the first three."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    layers: Annotated[int, typer.Option(min=1, help="Of the model; 40 and the next three are Wan 2.1 14B's.")] = 40,
    heads: Annotated[int, typer.Option(min=1)] = 40,
    head_dim: Annotated[int, typer.Option(min=4)] = 128,
    ffn: Annotated[int, typer.Option(min=16)] = 13824,
    tokens: Annotated[list[int] | None, typer.Option(min=4, help="Of a clip; may be repeated.")] = None,
    resident: Annotated[list[int] | None, typer.Option(min=0, help="Leading blocks; may be repeated.")] = None,
    prefetch: Annotated[int, typer.Option(min=0, help="Blocks ahead.")] = 1,
    beside: Annotated[list[str] | None, typer.Option(help="diffusers or accelerate; may be repeated.")] = None,
    ranks: Annotated[int, typer.Option(min=2, help="That share, each on a device of its own.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Of each process.")] = 1,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    scratch: Annotated[Path, typer.Option(metavar="FOLDER", help="For a checkpoint and its cache.")] = Path("/tmp"),
    output: OutputOption = OUTPUT,
) -> None:
    """A random model larger than its share of the device: passes beside diffusers' and accelerate's offloading, float8
    layers beside bfloat16 ones, starts with and without the cache of quantised weights; several ranks beside FSDP2."""
    from streamsynth.bench.float8 import Float8Load, bench_float8
    from streamsynth.bench.offload import SIDES, OffloadLoad, bench_offload
    from streamsynth.bench.offload_sides import DitSizes
    from streamsynth.bench.quant_load import QuantLoad, bench_quant_load
    from streamsynth.bench.sharing import bench_sharing
    from streamsynth.bench.sharing_rank import SharingLoad
    from streamsynth.engine.opening import check_device

    check_device(device, "--device")
    for name in part or ():
        if name not in (*OFFLOAD_PARTS, SHARING):
            raise invalid_value("--part", name, f"one of {', '.join((*OFFLOAD_PARTS, SHARING))}")
    for name in beside or ():
        if name not in SIDES:
            raise invalid_value("--beside", name, f"one of {', '.join(SIDES)}")
    sizes = DitSizes(layers=layers, heads=heads, head_dim=head_dim, ffn=ffn)
    reports: list[Report] = []
    for name in part or OFFLOAD_PARTS:
        if name == "passes":
            load = OffloadLoad(
                sizes=sizes,
                device=device,
                tokens=tokens or (256, 32760),
                resident=resident or (0, 12 * layers // 40),
                depths=sorted({max(1, layers // 4), max(1, layers // 2), layers}),
                prefetch=prefetch,
                theirs=SIDES if beside is None else [name for name in SIDES if name in beside],
                threads=threads,
                rounds=rounds,
            )
            reports += bench_offload(load)
        elif name == "linears":
            width = heads * head_dim
            shapes = ((width, width), (width, ffn), (ffn, width))
            reports.append(bench_float8(Float8Load(device=device, shapes=shapes, rows=tokens or (512, 32760))))
        elif name == SHARING:
            clips = tuple(tokens or (256, 32760))
            reports.append(
                bench_sharing(
                    SharingLoad(ranks=ranks, sizes=sizes, device=device, tokens=clips, threads=threads, rounds=rounds)
                )
            )
        else:
            starts = QuantLoad(folder=scratch / "quant-load", sizes=sizes, device=device, threads=threads)
            reports.append(bench_quant_load(starts))
    _leave(reports, output)


@app.command("first-sound")
def first_sound(
    model: Annotated[str, typer.Option(metavar="NAME")] = "tiny-speech",
    folder: Annotated[Path | None, typer.Option(help="The checkpoint's, where the model needs one.")] = None,
    device: Annotated[str | None, typer.Option(help="Where both stages run.")] = None,
    text: Annotated[str, typer.Option(help="What is said.")] = "Good morning, how are you?",
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    output: OutputOption = OUTPUT,
) -> None:
    """The time to first audio by stage, both stages in one process and without a server."""
    from streamsynth.bench.ar_profile import StageSplit
    from streamsynth.bench.report import Report
    from streamsynth.config.registry import find_pipeline
    from streamsynth.engine.opening import check_device

    if device is not None:
        check_device(device, "--device")
    given = {"folder": None if folder is None else str(folder), "device": device}
    options = {name: value for name, value in given.items() if value is not None}
    pipeline = find_pipeline(model)
    split = StageSplit(pipeline, {stage.name: options for stage in pipeline.stages})
    _leave([Report("first-sound", list(split.rows(text, rounds)))], output)


@app.command()
def ar(
    folder: Annotated[Path | None, typer.Option(help="A talker in CSM layout; without it, tiny-speech.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of every side.")] = 1,
    streams: Annotated[list[int] | None, typer.Option(min=1, help="So many at once; may be repeated.")] = None,
    theirs: Annotated[list[int] | None, typer.Option(min=1, help="The same for transformers; may be repeated.")] = None,
    context: Annotated[int, typer.Option(min=1, help="Text tokens of each prompt.")] = 50,
    frames: Annotated[int, typer.Option(min=2, help="Frames that each stream draws.")] = 50,
    rounds: Annotated[int, typer.Option(min=1, help="How often the sides take turns.")] = 3,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 draws greedily, and compares the frames.")] = 0.0,
    compiled: Annotated[bool, typer.Option(help="Beside transformers with a static cache and compiled too.")] = False,
    float8: Annotated[bool, typer.Option(help="With pages of float8 too.")] = False,
    profiled: Annotated[bool, typer.Option("--profile", help="The kernels of a step on CUDA too.")] = False,
    alone: Annotated[bool, typer.Option(help="Without transformers.")] = False,
    output: OutputOption = OUTPUT,
) -> None:
    """A talker's frames: one stream and many, beside transformers on the same weights."""
    from streamsynth.bench.ar import ArLoad, bench_ar, frame_rate_of
    from streamsynth.engine.opening import check_device
    from streamsynth.models.tiny_speech.places import weights_folder

    check_device(device, "--device")
    folder = folder or weights_folder() / "talker"
    load = ArLoad(
        folder=folder,
        frame_rate=frame_rate_of(folder),
        device=device,
        dtype=dtype,
        threads=threads,
        streams=streams or (1, 2, 4, 8),
        theirs=() if alone else theirs or (1, 8),
        context=context,
        frames=frames,
        rounds=rounds,
        temperature=temperature,
        compiled=compiled,
        float8=float8,
        profiled=profiled,
    )
    _leave(bench_ar(load), output)


@app.command()
def llama(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A text model in Hugging Face layout.")],
    dtype: Annotated[list[str] | None, typer.Option(help="float32 or bfloat16; may be repeated.")] = None,
    threads: Annotated[list[int] | None, typer.Option(min=1, help="Of every side; may be repeated.")] = None,
    texts: Annotated[int, typer.Option(min=1, max=8, help="How many of the texts are written.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, help="What each side makes of a text.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="How often the sides take turns at each; the best counts.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy; else the best 50 are drawn from.")] = 0.0,
    vllm: Annotated[
        Path | None, typer.Option(metavar="PYTHON", help="Of an environment that has vllm: measured beside us.")
    ] = None,
    output: OutputOption = OUTPUT,
) -> None:
    """One text at a time on the CPU, beside transformers and vllm, and beside what the memory could give."""
    from streamsynth.bench.llama import LlamaLoad, bench_llama

    load = LlamaLoad(
        folder=folder,
        dtypes=dtype or ("float32", "bfloat16"),
        threads=threads or (1, 2),
        texts=texts,
        tokens=tokens,
        rounds=rounds,
        temperature=temperature,
        vllm=vllm,
    )
    _leave([bench_llama(load)], output)


def _sessions(url: str | None, load: SessionsLoad, soaking: SoakLoad | None, *, busy: bool) -> list[Report]:
    from streamsynth.bench.sessions import bench_cancels_beside_a_voice, bench_sessions
    from streamsynth.bench.soak import bench_soak
    from streamsynth.bench.target import target

    key = environment.api_key()
    with target(url, key, "--model", "sine") as at:
        reports = asyncio.run(bench_sessions(at, load))
    if busy:
        with target(None, key, "--model", "sine", "--model", "hibari") as at:
            reports.append(asyncio.run(bench_cancels_beside_a_voice(at, load)))
    if soaking is not None:
        with target(url, key, "--model", "sine") as at:
            reports.append(asyncio.run(bench_soak(at, soaking)))
    return reports


def _leave(reports: Sequence[Report], folder: Path) -> None:
    for report in reports:
        report.show()
        for note in report.notes:
            typer.echo(note)
    for report in reports:
        for path in report.write(folder):
            typer.echo(f"written {path}", err=True)


def _check_counters(reports: Sequence[Report]) -> None:
    """What must be zero whatever the machine: the exit status says whether it was."""
    wrong = [
        f"{report.name}: {name} is {row[name]}"
        for report in reports
        for row in report.rows
        for name in ("failed", "frames after the ack", "steps for stalled readers", "pages leaked")
        if row.get(name)
    ]
    for line in wrong:
        typer.echo(line, err=True)
    if wrong:
        raise typer.Exit(1)
