"""`python -m streamsynth.workers --stage NAME --connection FD --memory FD`: one worker process, started by the server.

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

from streamsynth.workers.run import run_worker

_PR_SET_PDEATHSIG = 1
_GIL_SWITCH_S = 0.001
"""A cancel is read by another thread while a step may be in pure Python: let it in soon."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="streamsynth.workers")
    parser.add_argument("--stage", required=True)
    parser.add_argument("--connection", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True)
    arguments = parser.parse_args()
    _stay_while_the_server_does()
    sys.setswitchinterval(_GIL_SWITCH_S)
    logging.basicConfig(format=f"%(asctime)s %(levelname)s {arguments.stage}: %(message)s", level=logging.INFO)
    connection = socket.socket(fileno=arguments.connection)
    run_worker(connection, arguments.memory, on_server_gone=lambda: os._exit(0))


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
