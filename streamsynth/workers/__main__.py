"""`python -m streamsynth.workers --stage NAME --connection FD --memory FD`: one worker process, started by the server.

Of several ranks each is such a process: `--rank N --ranks N --store FD --peer FD ...`; only rank 0 has the connection.
The command line is stable: it is how an operator finds the workers of a stage.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import socket
import sys

from streamsynth.engine.parallel.seat import FollowingSeat, LeadingSeat
from streamsynth.workers.run import run_follower, run_worker

_PR_SET_PDEATHSIG = 1
_GIL_SWITCH_S = 0.001
"""A cancel is read by another thread while a step may be in pure Python: let it in soon."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="streamsynth.workers")
    parser.add_argument("--stage", required=True)
    parser.add_argument("--connection", type=int)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--store", type=int)
    parser.add_argument("--peer", type=int, action="append", default=[])
    arguments = parser.parse_args()
    _stay_while_the_server_does()
    sys.setswitchinterval(_GIL_SWITCH_S)
    name = arguments.stage if arguments.ranks == 1 else f"{arguments.stage} rank {arguments.rank}"
    logging.basicConfig(format=f"%(asctime)s %(levelname)s {name}: %(message)s", level=logging.INFO)
    store = f"/proc/self/fd/{arguments.store}"
    peers = [socket.socket(fileno=descriptor) for descriptor in arguments.peer]
    if arguments.rank:
        run_follower(FollowingSeat(arguments.rank, arguments.ranks, store, *peers))
    else:
        seat = LeadingSeat(store, peers) if peers else None
        connection = socket.socket(fileno=arguments.connection)
        run_worker(connection, arguments.memory, on_server_gone=lambda: os._exit(0), seat=seat)


def _stay_while_the_server_does() -> None:
    """Ctrl-C and a closing terminal reach the whole terminal group, a service manager's SIGTERM every process of the
    service: the server drains then, for which it needs its workers, and ends them by their sockets or by SIGKILL.

    A worker that is stopped does not see its socket end: for that the kernel kills it when the thread that started it
    ends, which belongs to the server's pool and lives as long as its loop.
    """
    for polite in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(polite, signal.SIG_IGN)
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError("the kernel knows no signal for the death of a parent")


if __name__ == "__main__":
    main()
