"""`streamsynth doctor`: tries out what StreamSynth needs from this machine, and says what works."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata, util
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)

VOICE_TIMEOUT_S = 60.0
SPOKEN = "Ready."


class Verdict(StrEnum):
    """`absent` is something optional that is not here; `broken` is something needed that does not work."""

    OK = "ok"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    verdict: Verdict
    detail: str


@app.command()
def doctor(
    port: Annotated[int, typer.Option(help="The port whose availability is tried.")] = 8000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False,
) -> None:
    """Try out what StreamSynth needs from this machine. Exit status 1 if something needed is broken."""
    findings = [*examine(port)]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print_table(findings)
    raise typer.Exit(1 if any(finding.verdict is Verdict.BROKEN for finding in findings) else 0)


def examine(port: int) -> Iterator[Finding]:
    """Every finding, in order. Takes seconds: it starts a worker and speaks a word. Not for inside an event loop."""
    needed: dict[str, Callable[[], str]] = {
        "system": _system,
        "python": _python,
        "cores and memory": _resources,
        "packages": _packages,
        "shared memory": _shared_memory,
        "audio formats": _audio_formats,
        "voice": _voice,
    }
    optional: dict[str, Callable[[], str]] = {
        f"port {port}": lambda: _port(port),
        "speakers": _speakers,
        "chromium": _chromium,
    }
    for what, attempt in needed.items():
        yield _try(what, attempt, Verdict.BROKEN)
    for what, attempt in optional.items():
        yield _try(what, attempt, Verdict.ABSENT)


def _try(what: str, attempt: Callable[[], str], otherwise: Verdict) -> Finding:
    try:
        return Finding(what, Verdict.OK, attempt())
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here is the finding
        return Finding(what, otherwise, str(error) or type(error).__name__)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise RuntimeError(problem)


def _system() -> str:
    _require(sys.platform == "linux", f"{platform.system()}: StreamSynth needs Linux (memfd, pidfd)")
    return f"Linux {platform.release()} {platform.machine()}"


def _python() -> str:
    _require(sys.version_info >= (3, 11), f"Python {platform.python_version()}: 3.11 or newer is needed")
    return f"{platform.python_version()} at {sys.executable}"


def _resources() -> str:
    cores = len(os.sched_getaffinity(0))
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) / 2**20
    _require(available >= 0.5, f"{available:.1f} GiB of memory available: the voice needs half of one")
    return f"{cores} cores, {available:.1f} GiB available"


def _packages() -> str:
    """The versions of what streamsynth itself requires, without extras."""
    requirements = metadata.requires("streamsynth") or []
    names = [_name(line) for line in requirements if "extra ==" not in line]
    missing = []
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    _require(not missing, "not installed: " + ", ".join(missing))
    return f"streamsynth {metadata.version('streamsynth')}, " + ", ".join(versions)


def _name(requirement: str) -> str:
    end = next((n for n, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:end]


def _shared_memory() -> str:
    """Another process reads a memfd through the descriptor that it was handed, as the server does with its workers'."""
    from streamsynth.workers.shared import create_memory

    memory = create_memory(4096)
    try:
        os.pwrite(memory, SPOKEN.encode(), 0)
        code = "import os, sys; print(os.pread(int(sys.argv[1]), int(sys.argv[2]), 0).decode())"
        command = [sys.executable, "-I", "-c", code, str(memory), str(len(SPOKEN))]
        done = subprocess.run(command, pass_fds=(memory,), capture_output=True, text=True, timeout=30, check=False)
    finally:
        os.close(memory)
    _require(done.stdout.strip() == SPOKEN, done.stderr.strip().rpartition("\n")[2] or "another process cannot read it")
    return "a memfd is readable in another process"


def _audio_formats() -> str:
    import numpy as np

    from streamsynth.codecs.encoder import open_encoder
    from streamsynth.codecs.formats import AudioFormat

    tone = np.sin(np.arange(12_000, dtype=np.float32) * 0.1).astype(np.float32)
    for each in AudioFormat:
        encoder = open_encoder(each, source_rate=24_000)
        made = encoder.encode(tone) + encoder.finish()
        _require(len(made) > 0, f"{each.value} gave no bytes")
    return ", ".join(each.value for each in AudioFormat)


def _voice() -> str:
    """The default model speaks a word, in a worker process as in the server."""
    return asyncio.run(_speak_a_word())


async def _speak_a_word() -> str:
    import numpy as np

    from streamsynth.config.plan import plan
    from streamsynth.runtime import Runtime
    from streamsynth.speech import SpeechRequest

    (deployment,) = plan()
    pipeline = deployment.pipeline
    runtime = Runtime([deployment])
    async with asyncio.timeout(VOICE_TIMEOUT_S):
        started = time.monotonic()
        await runtime.start()
        try:
            ready = time.monotonic()
            flow = runtime.open_speech(pipeline.name, SpeechRequest(voice=pipeline.speech.default_voice, seed=1))
            flow.send_text(SPOKEN)
            flow.finish_text()
            samples = np.concatenate([chunk.samples async for chunk in flow])
            spoken = time.monotonic()
        finally:
            await runtime.stop()
    _require(bool(np.abs(samples).max() > 0.05), "the voice made silence")
    seconds = len(samples) / pipeline.speech.sample_rate
    return f"{pipeline.name}: ready in {ready - started:.1f} s, {seconds:.1f} s of speech in {spoken - ready:.2f} s"


def _port(port: int) -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise RuntimeError(f"taken ({error.strerror}): choose another with --port") from None
    return "free on 127.0.0.1"


def _speakers() -> str:
    _require(util.find_spec("sounddevice") is not None, "needs the extra: pip install 'streamsynth[speakers]'")
    import sounddevice

    return str(sounddevice.query_devices(kind="output")["name"])


def _chromium() -> str:
    path = shutil.which("chromium")
    if path is None:
        raise RuntimeError("not installed: only the tests of the browser page need it")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


def _print_table(findings: list[Finding]) -> None:
    from streamsynth.console import print_table

    rows = [(finding.what, finding.verdict.value, finding.detail) for finding in findings]
    colours = {Verdict.OK.value: "green", Verdict.ABSENT.value: "yellow", Verdict.BROKEN.value: "bold red"}
    print_table(("what", "verdict", "found"), [rows], colours)
