"""Small kernels that are launched while the kernel before them still runs, and wait for its results
(programmatic dependent launch, from compute capability 9.0 on; earlier GPUs launch them after it).

A small kernel is mostly launch: behind cross-entropy's losses the mean took 3.4 µs for 5.1 on an H100,
behind norms' gradients the second stage of a weight's sum 2.9 for 5.0.
"""

import triton
import triton.language as tl
from triton import knobs
from triton.runtime import driver


def dependent() -> dict[str, bool]:
    """The options of such a kernel's launch, DEPENDENT among them."""
    if knobs.runtime.interpret or driver.active.get_current_target().arch < 90:
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True}


@triton.jit
def launch_the_next(DEPENDENT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Lets the kernel behind this one start as soon as there is room for it; it waits by itself."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_the_one_before(DEPENDENT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Waits until the kernel before has ended and all of its results are written. It must be called
    before anything is read or written."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()


@triton.jit
def bring(at, n_bytes):  # type: ignore[no-untyped-def]
    """Each thread asks for so many bytes, a multiple of 16, to be brought into the L2; 0 for nothing.

    It reads nothing that a program could see, so it needs no wait. From compute capability 9.0 on.
    """
    tl.inline_asm_elementwise(
        """{
        .reg .pred there;
        setp.ne.s32 there, $2, 0;
        @there cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [at, n_bytes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
