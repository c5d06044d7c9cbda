"""`python -m streamsynth.workers --stage NAME --connection FD --memory FD`: one worker process, started by the server.

The command line is stable: it is how an operator finds the workers of a stage.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys

from streamsynth.workers.loop import run_worker

_GIL_SWITCH_S = 0.001
"""A cancel is read by another thread while a step may be in pure Python: let it in soon."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="streamsynth.workers")
    parser.add_argument("--stage", required=True)
    parser.add_argument("--connection", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True)
    arguments = parser.parse_args()
    # Ctrl-C reaches the whole terminal group; the server decides when its workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(_GIL_SWITCH_S)
    logging.basicConfig(format=f"%(asctime)s %(levelname)s {arguments.stage}: %(message)s", level=logging.INFO)
    connection = socket.socket(fileno=arguments.connection)
    run_worker(connection, arguments.memory, on_server_gone=lambda: os._exit(0))


if __name__ == "__main__":
    main()
