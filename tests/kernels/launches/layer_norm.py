"""What the LayerNorm kernels are started with."""

import torch

from launch import Launch
from peakward.lab.ops.layer_norm.triton import layer_norm, layer_norm_backward

WIDTHS = (512, 1000, 8192, 10000, 16384, 32768, 65536, 131072)
SPILLED_BYTES = {
    # With few registers, so that programs share a multiprocessor.
    ("forward", 10000): 16,
    ("forward", 32768): 48,
    # Rows that fill the registers with their sums.
    ("backward", 16384): 136,
}


def _forward(width: int, dtype: torch.dtype, added: bool) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    layer_norm(rows, rows if added else None, rows[0], rows[1], 1e-6)


def _backward(width: int, dtype: torch.dtype, added: bool) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    r = torch.empty(4, device="meta")
    layer_norm_backward(rows, rows if added else None, rows, rows[0], rows[0], r, r)


def _launch(name: str, width: int, dtype: torch.dtype, added: bool) -> Launch:
    """What is loaded ahead lies in shared memory; the few bytes that some spill are cheaper than less
    occupancy."""
    start, registers = {"forward": (_forward, 144), "backward": (_backward, 255)}[name]
    return Launch(
        lambda: start(width, dtype, added),
        registers=registers,
        shared_bytes=161 << 10,
        stack_bytes=SPILLED_BYTES.get((name, width), 8),
    )


LAUNCHES = {
    f"{name}{' added' if added else ''} {width} {dtype}": _launch(name, width, dtype, added)
    for name in ("forward", "backward")
    for width in WIDTHS
    for dtype, added in ((torch.bfloat16, True), (torch.bfloat16, False), (torch.float32, True))
}
