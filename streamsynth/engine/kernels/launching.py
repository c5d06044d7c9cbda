"""How the kernels of a step follow each other: programmatic dependent launch, and weights that are fetched ahead.

With `overlap` a kernel may start while the one before it still runs: it sends its weights to the L2 cache, and touches
nothing that another kernel writes until that one has ended. Every kernel here waits so, therefore all before it have
ended too.
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
def fetch(pointers):
    """Send the cache lines at `pointers` to L2."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
