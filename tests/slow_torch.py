"""torch as the tests run it on a CPU: what is slow there and none of ours, replaced."""

import gc
import sys
import warnings

import torch
from torch import Tensor

FP8 = torch.library.Library("aten", "IMPL")
count_frozen = gc.get_freeze_count
"""Python's own, which walks through all that is frozen: of this suite 0.1 s, at each of its measurements."""


def scaled_mm_in_fp32(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """`torch._scaled_mm`: of two matrices in e4m3 oneDNN's takes 300 times as long, 70 ms for 128 cubed."""
    if {a.dtype, b.dtype} - {torch.float8_e4m3fn, torch.float8_e5m2}:
        raise ValueError(f"expected two matrices in fp8, got {a.dtype} and {b.dtype}")
    product = (a.float() @ b.float()) * (scale_a * scale_b)
    if bias is not None:
        product += bias
    return product.to(out_dtype or a.dtype)


def adapt() -> None:
    """Replaces them, once a process."""
    with warnings.catch_warnings(action="ignore"):  # That it takes the place of another is meant.
        FP8.impl("_scaled_mm", scaled_mm_in_fp32, "CPU", allow_override=True)
    gc.get_freeze_count = lambda: 1


def leave_guards_untimed() -> None:
    """Once torch.compile is imported: to time a graph's guards it empties the processor's caches, 20 ms."""
    guards = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        guards.profile_guard_manager = lambda *_: 0.0
