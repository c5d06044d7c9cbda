"""How the kernels of a step follow each other: programmatic dependent launch.

With `overlap` a kernel may start while the one before it still runs: it touches nothing that another kernel writes
until that one has ended. Every kernel here waits so, therefore all before it have ended too. What a step is told
(positions, tables, sampling) is written before its first kernel: it may be read at once. So may weights, which nobody
changes between steps.
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


@triton.jit
def send_ahead(pointers, nbytes: tl.constexpr):
    """Begin to bring `nbytes` (a multiple of 16, as the addresses are) from each pointer to L2. From Hopper on."""
    tl.inline_asm_elementwise(
        "{ cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r",
        [pointers.to(tl.int64), tl.full(pointers.shape, nbytes, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
