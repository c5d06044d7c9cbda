"""How the kernels of a step follow each other: programmatic dependent launch, and weights that are fetched ahead.

With `overlap` a kernel may start while the one before it still runs: it sends its weights to the L2 cache, and touches
nothing that another kernel writes until that one has ended. Every kernel here waits so, therefore all before it have
ended too. What a step is told (positions, tables, sampling) is written before its first kernel: it may be read at once.
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
def fetch(pointer, nbytes, thread):
    """Let one thread of the program send `nbytes` (a multiple of 16, as the address is) to L2."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred mine;
        .reg .u32 self;
        mov.u32 self, %tid.x;
        setp.eq.u32 mine, self, $3;
        @mine cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r,r",
        [pointer.to(tl.int64), nbytes, thread],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
