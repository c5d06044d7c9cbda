"""What damages the cache of quantised weights costs a start its speed, never its weights."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from offload_models import network
from quant_source import RECIPE, save, source

from streamsynth.engine.quant import artifact
from streamsynth.engine.quant.cache import Finished, QuantCache
from streamsynth.engine.quant.load import Loaded, load_quantised

TESTS = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def cache(tmp_path: Path) -> QuantCache:
    return QuantCache(tmp_path / "cache")


def load(folder: Path, cache: QuantCache) -> Loaded:
    return load_quantised(source(folder), RECIPE, cache)


def kept(cache: QuantCache) -> Path:
    (entry,) = cache.entries()
    return entry.folder


def leftovers(cache: QuantCache) -> list[str]:
    return [each.name for each in cache.root.iterdir() if each.name.startswith(".being")]


def bytes_of(folder: Path) -> bytes:
    return (folder / "tensors-00000.safetensors").read_bytes()


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda folder: (folder / "tensors-00000.safetensors").write_bytes(bytes_of(folder)[:-1]),
    "longer": lambda folder: (folder / "tensors-00000.safetensors").write_bytes(bytes_of(folder) + b"x"),
    "a byte of a weight": lambda folder: flip(folder / "tensors-00000.safetensors", -5),
    "a byte of a header": lambda folder: flip(folder / "tensors-00000.safetensors", 20),
    "no weights": lambda folder: (folder / "tensors-00000.safetensors").unlink(),
    "no seal": lambda folder: (folder / "COMPLETE").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "a list for a manifest": lambda folder: (folder / "manifest.json").write_text("[]"),
    "a byte of the manifest": lambda folder: flip(folder / "manifest.json", 100),
    "a file of another folder": lambda folder: resealed(folder, "tensors-00000", "../outside"),
    "another key": lambda folder: resealed(folder, '"key": "', '"key": "0'),
    "another schema": lambda folder: resealed(folder, '"schema_version": 1', '"schema_version": 2'),
    "one tensor fewer": lambda folder: resealed(folder, '"tensors": 4', '"tensors": 3'),
}


def resealed(folder: Path, found: str, put: str) -> None:
    """A manifest that says something else, with a seal that fits."""
    import hashlib

    said = (folder / "manifest.json").read_text()
    assert found in said
    changed = said.replace(found, put).encode()
    (folder / "manifest.json").write_bytes(changed)
    (folder / "COMPLETE").write_text(hashlib.sha256(changed).hexdigest())


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_artifact_misses_and_is_replaced(damage: str, folder: Path, cache: QuantCache) -> None:
    """T5.3 to T5.7, FP8-2; FP8-6 does not bind: a folder that is no artifact heals."""
    load(folder, cache)
    intact = bytes_of(kept(cache))
    DAMAGE[damage](kept(cache))
    (entry,) = cache.entries()
    made = load(folder, cache)
    assert cache.verify(entry) is None or entry.damage
    assert not made.hit
    assert made.fault
    assert load(folder, cache).hit
    assert bytes_of(kept(cache)) == intact
    assert leftovers(cache) == []


def test_an_empty_folder_in_its_place_is_replaced(folder: Path, cache: QuantCache) -> None:
    load(folder, cache)
    there = kept(cache)
    for each in list(there.iterdir()):
        each.unlink()
    assert not load(folder, cache).hit
    assert load(folder, cache).hit


@pytest.mark.parametrize("write", range(1, 4))
def test_a_full_disk_leaves_nothing_and_the_model_loads(
    write: int, folder: Path, cache: QuantCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T5.9, FP8-7: the tensors, the manifest or the seal find no room."""
    writes = 0
    plain = artifact._write_synced

    def full(path: Path, pieces: object) -> None:
        nonlocal writes
        writes += 1
        if writes == write:
            path.write_bytes(b"part of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(path, pieces)  # type: ignore[arg-type]

    monkeypatch.setattr(artifact, "_write_synced", full)
    made = load(folder, cache)
    assert not made.hit
    assert "No space left" in str(made.fault)
    assert cache.entries() == []
    assert leftovers(cache) == []
    monkeypatch.undo()
    assert load(folder, cache).fault is None
    assert load(folder, cache).hit


def test_a_cache_that_cannot_be_written_leaves_the_model_as_it_is(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    made = load(folder, QuantCache(tmp_path / "cache"))
    assert not made.hit
    assert made.fault


def test_what_a_maker_raises_leaves_nothing(folder: Path, cache: QuantCache) -> None:
    files = list(folder.iterdir())

    def fails() -> Finished:
        raise ValueError("injected")

    with pytest.raises(ValueError, match="injected"):
        cache.build(cache.identify("transformer", RECIPE, folder, files), fails)
    assert cache.entries() == []
    assert leftovers(cache) == []


BUILDER = """
import sys
from pathlib import Path
from quant_source import RECIPE, source
from streamsynth.engine.quant import artifact
from streamsynth.engine.quant.cache import QuantCache
from streamsynth.engine.quant.load import load_quantised

folder, root, until = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
plain = artifact._write_synced

def stops(path, pieces):
    plain(path, pieces)
    if until and path.name.startswith(until):
        print("here", flush=True)
        sys.stdin.read()

artifact._write_synced = stops
made = load_quantised(source(folder), RECIPE, QuantCache(root))
print("hit" if made.hit else "made", made.fault)
"""


def builder(folder: Path, cache: QuantCache, until: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder), str(cache.root), until],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("until", ["tensors", "COMPLETE"])
def test_a_killed_builder_is_followed_by_another(until: str, folder: Path, cache: QuantCache) -> None:
    with builder(folder, cache, until) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "here\n"
        killed.send_signal(signal.SIGKILL)
    assert cache.entries() == []
    assert len(leftovers(cache)) == 1
    made = load(folder, cache)
    assert (made.hit, made.fault) == (False, None)
    assert leftovers(cache) == []
    assert load(folder, cache).hit


def test_a_second_builder_waits_for_the_first_and_takes_what_it_made(folder: Path, cache: QuantCache) -> None:
    """T5.10, FP8-8"""
    with builder(folder, cache, "tensors") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "here\n"
        waiting = threading.Event()

        def wait_and_build() -> Loaded:
            waiting.set()
            return load(folder, cache)

        with ThreadPoolExecutor(1) as second:
            made = second.submit(wait_and_build)
            waiting.wait()
            first.communicate("", timeout=60)
            assert (made.result().hit, made.result().fault) == (False, None)
    assert first.returncode == 0
    assert cache.verify(cache.entries()[0]) is None
    assert leftovers(cache) == []


def test_the_loser_of_a_race_without_locks_accepts_the_winners_artifact(
    folder: Path, cache: QuantCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOTEMPTY, which a rename onto a folder that is not empty gives on Linux, is a lost race too."""
    monkeypatch.setattr("streamsynth.engine.quant.cache.fcntl.flock", lambda *_: None)
    monkeypatch.setattr(QuantCache, "_sweep", lambda *_: None)
    both = threading.Barrier(2)
    plain = Path.rename
    wanted = cache.identify("transformer", RECIPE, folder, list(folder.iterdir()))
    model = network()
    finished = Finished(dict(model.state_dict()), {}, ())

    def rename(path: Path, target: Path) -> Path:
        if path.name.startswith(".being-written"):
            both.wait()
        return plain(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with ThreadPoolExecutor(2) as builders:
        made = [builders.submit(cache.build, wanted, lambda: finished) for _ in range(2)]
        assert made[0].result() == made[1].result()
    assert leftovers(cache) == []
    assert cache.verify(cache.entries()[0]) is None
