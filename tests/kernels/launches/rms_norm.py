"""What the RMSNorm kernels are started with."""

import torch

from launch import Launch
from peakward.lab.ops.rms_norm.triton import rms_norm, rms_norm_backward

WIDTHS = (512, 1000, 8192, 16384, 32768, 65536, 131072)
SPILLED_BYTES = {
    ("forward", 32768): 8,
    ("forward", 65536): 8,
    ("forward", 131072): 8,
    ("backward", 32768): 16,
    ("backward", 65536): 16,
    ("backward", 131072): 16,
}
"""Of rows with a residual, or pieces of them, that registers hold just not: cheaper than a second reading."""


def _forward(width: int, dtype: torch.dtype, added: bool) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    rms_norm(rows, rows if added else None, rows[0], 1e-6)


def _backward(width: int, dtype: torch.dtype, added: bool) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    r = torch.empty(4, device="meta")
    rms_norm_backward(rows, rows if added else None, rows, rows[0], r)


LAUNCHES = {
    f"{name}{' added' if added else ''} {width} {dtype}": Launch(
        lambda start=start, width=width, dtype=dtype, added=added: start(width, dtype, added),
        registers=registers,
        shared_bytes=shared_bytes,
        stack_bytes=SPILLED_BYTES.get((name, width), 0),
    )
    for name, start, registers, shared_bytes in (
        ("forward", _forward, 96, 2048),
        ("backward", _backward, 255, 161 << 10),
    )
    for width in WIDTHS
    for dtype, added in ((torch.bfloat16, True), (torch.bfloat16, False), (torch.float32, True))
}
