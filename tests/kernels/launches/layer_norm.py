"""What the LayerNorm kernels are started with."""

import torch

from launch import Launch
from peakward.lab.ops.layer_norm.triton import layer_norm, layer_norm_backward

WIDTHS = (1000, 1024, 8192, 16384, 32768, 65536)


def _forward(width: int, dtype: torch.dtype, added: bool) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    layer_norm(rows, rows if added else None, rows[0], rows[1], 1e-6)


def _backward(width: int, dtype: torch.dtype, added: bool) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    r = torch.empty(4, device="meta")
    layer_norm_backward(rows, rows if added else None, rows, rows[0], rows[0], r, r)


def _launch(name: str, width: int, dtype: torch.dtype, added: bool) -> Launch:
    """A row of 16384 is held just not: what it spills is cheaper than a second reading."""
    start, shared_bytes, spilled_bytes = {
        "forward": (_forward, 1024, 24),
        "backward": (_backward, 100 << 10, 256),
    }[name]
    return Launch(
        lambda: start(width, dtype, added),
        registers=64 if width <= 8192 and name == "forward" else 128,
        shared_bytes=shared_bytes,
        stack_bytes=spilled_bytes if width >= 16384 else 0,
    )


LAUNCHES = {
    f"{name}{' added' if added else ''} {width} {dtype}": _launch(name, width, dtype, added)
    for name in ("forward", "backward")
    for width in WIDTHS
    for dtype, added in ((torch.bfloat16, True), (torch.bfloat16, False), (torch.float32, True))
}
