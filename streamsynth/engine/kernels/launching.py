"""How the kernels of a step follow each other: programmatic dependent launch.

With `overlap` a kernel may start while the one before it still runs: it touches nothing that another kernel writes
until that one has ended. Every kernel here waits so, therefore all before it have ended too. What a step is told
(positions, tables, sampling) is written before its first kernel: it may be read at once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_next_start(overlap: tl.constexpr):
    if overlap:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(overlap: tl.constexpr):
    if overlap:
        gdc_wait()
