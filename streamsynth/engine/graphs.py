"""Work that is captured once and repeated: a CUDA graph on the device, the same calls again elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

Work = Callable[[], None]


def repeating(device: torch.device) -> Callable[[Work], Work]:
    """What turns work at fixed shapes into its repetition; it runs the work at least once.

    All that one of these captures shares memory: no two may run at the same time. It runs with the priority of the
    stream that is current now, and is to be repeated on that one.
    """
    return _graph_capture() if device.type == "cuda" else _as_it_is


def _as_it_is(run: Work) -> Work:
    run()
    return run


def _graph_capture() -> Callable[[Work], Work]:
    pool = torch.cuda.graph_pool_handle()
    # A kernel of a graph keeps the priority of the stream that it was captured on.
    side = torch.cuda.Stream(priority=torch.cuda.current_stream().priority)

    def capture(run: Work) -> Work:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            run()
        return partial(_replay, graph, run)

    return capture


def _replay(graph: torch.cuda.CUDAGraph, _run: Work) -> None:
    """A graph knows addresses alone: what `_run` holds must live as long."""
    graph.replay()
