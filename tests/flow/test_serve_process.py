"""The real `streamsynth serve`: it says when it is ready, ends in order, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from streamsynth.testing.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


def get(url: str, key: str | None = None) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_it_prints_its_address_when_ready_and_ends_with_status_0(serve_process: StartServer) -> None:
    server = serve_process("--model", "sine")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.url)
    assert get(f"{server.url}/ready")[0] == 200
    assert len(server.worker_pids()) == 1
    assert server.stop() == 0


def test_several_models_run_beside_each_other_and_the_first_is_the_default(
    serve_process: StartServer, tmp_path: Path
) -> None:
    deploy = tmp_path / "sine.yaml"
    deploy.write_text("pipeline: sine\nstages:\n  tone:\n    max_num_seqs: 3\n")
    server = serve_process("--model", "sine", "--model", "hibari", "--deploy", str(deploy))
    listed = [model["id"] for model in json.loads(get(f"{server.url}/v1/models")[1])["data"]]
    assert {"sine", "hibari"} <= set(listed)
    assert len(server.worker_pids()) == 2
    assert server.stop() == 0


def test_workers_end_with_a_server_that_was_killed(serve_process: StartServer) -> None:
    """Nothing is left after `kill -9`: `kill` waits for the workers, and counts those that it had to help."""
    server = serve_process("--model", "sine")
    assert server.worker_pids()
    assert server.kill() == -signal.SIGKILL
    assert server.orphans == 0
    assert not list(Path("/dev/shm").glob("*streamsynth*"))


def test_an_interrupt_from_the_terminal_ends_it_in_order(serve_process: StartServer) -> None:
    server = serve_process("--model", "sine")
    for pid in (*server.worker_pids(), server.pid):
        os.kill(pid, signal.SIGINT)
    assert server.wait() == 0
    assert server.orphans == 0


def test_keys_come_from_the_file_and_the_environment_and_are_not_logged(
    serve_process: StartServer, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# the first key\nfile-key\n\n")
    server = serve_process(
        "--model", "sine", "--api-key-file", str(keys), env={"STREAMSYNTH_API_KEYS": "first-key,second-key"}
    )
    assert get(f"{server.url}/v1/models")[0] == 401
    for key in ("file-key", "first-key", "second-key"):
        assert get(f"{server.url}/v1/models", key)[0] == 200
    assert not re.search("file-key|first-key|second-key", server.log())


def test_limits_are_what_was_typed(serve_process: StartServer) -> None:
    server = serve_process("--model", "sine", "--limit", "sessions=3", "--limit", "idle_s=2.5")
    published = json.loads(get(f"{server.url}/v1/limits")[1])
    assert '"sessions": 3' in json.dumps(published)
    assert '"idle_s": 2.5' in json.dumps(published)
