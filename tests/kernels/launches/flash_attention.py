"""What the attention kernels are started with: settings as on the GPU that is compiled for."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from launch import Launch
from peakward.kernels.ops.flash_attention.rule import Packing, Rule
from peakward.kernels.ops.flash_attention.triton import backward, forward

CAUSAL = Rule(causal=True, window=None, scale=0.1)
ALL = Rule(causal=False, window=None, scale=0.1)
WINDOW = Rule(causal=True, window=256, scale=0.1)


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _forward(
    head_dim: int,
    dtype: torch.dtype = torch.bfloat16,
    rule: Rule = CAUSAL,
    *,
    slopes: bool = False,
) -> None:
    q = _empty(2, 8, 1024, head_dim, dtype=dtype)
    k = _empty(2, 2, 1024, head_dim, dtype=dtype)
    forward(q, k, k, _empty(8, dtype=torch.float32) if slopes else None, rule)


def _backward(
    head_dim: int,
    dtype: torch.dtype = torch.bfloat16,
    rule: Rule = CAUSAL,
    *,
    slopes: bool = False,
    group: int = 4,
) -> None:
    q = _empty(2, 8, 1024, head_dim, dtype=dtype)
    k = _empty(2, 8 // group, 1024, head_dim, dtype=dtype)
    lse = _empty(2, 8, 1024, dtype=torch.float32)
    alibi = _empty(8, dtype=torch.float32) if slopes else None
    backward(q, None, q, k, k, q, lse, alibi, rule)


def _packed(head_dim: int) -> None:
    q = _empty(4096, 8, head_dim, dtype=torch.bfloat16)
    starts = _empty(5, dtype=torch.int32)
    packing = Packing(starts, starts, 1024, 1024)
    forward(q, q, q, None, CAUSAL, packing)
    lse = _empty(8, 4096, dtype=torch.float32)
    backward(q, None, q, q, q, q, lse, None, CAUSAL, packing)


def _launch(start: Callable[..., None], *arguments: Any, stack: int = 0, **options: Any) -> Launch:
    """Limits that hold on both capabilities; sm_80's settings have 163 KiB of shared memory."""
    return Launch(
        partial(start, *arguments, **options),
        registers=255,
        shared_bytes=227 << 10,
        stack_bytes=stack,
    )


FP32 = torch.float32

# Forward passes spill next to nothing. Of backward passes, with dk and dv of a whole block in registers,
# those do whose keys and heads are wide, and on sm_80 those with masks and groups: `stack` is the
# most that was seen of Triton 3.6.0 and 3.7.1 on sm_80 and sm_90, rounded up.
LAUNCHES = {
    "forward 40": _launch(_forward, 40),
    **{f"forward {d}": _launch(_forward, d) for d in (64, 80, 128)},
    "forward 256": _launch(_forward, 256),
    "forward fp32 64": _launch(_forward, 64, FP32, stack=48),
    "forward fp32 128": _launch(_forward, 128, FP32, stack=88),
    "forward fp32 256": _launch(_forward, 256, FP32, stack=640),
    "forward 64 not causal": _launch(_forward, 64, rule=ALL),
    "forward 128 window and slopes": _launch(_forward, 128, rule=WINDOW, slopes=True, stack=8),
    "backward 64": _launch(_backward, 64, group=1),
    "backward 80": _launch(_backward, 80, group=1, stack=16),
    "backward 128": _launch(_backward, 128, group=1, stack=320),
    "backward 256": _launch(_backward, 256, group=1, stack=1024),
    "backward fp32 64": _launch(_backward, 64, FP32, stack=840),
    "backward fp32 128": _launch(_backward, 128, FP32, stack=600),
    "backward fp32 256": _launch(_backward, 256, FP32, stack=2400),
    "backward 128, groups": _launch(_backward, 128, stack=320),
    "backward 80 window and slopes": _launch(_backward, 80, rule=WINDOW, slopes=True, stack=600),
    "packed 80": _launch(_packed, 80, stack=320),
}
