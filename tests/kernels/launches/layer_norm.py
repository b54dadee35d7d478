"""What the LayerNorm kernels are started with."""

import torch

from launch import Launch
from peakward.kernels.ops.layer_norm.triton import layer_norm, layer_norm_backward
from peakward.kernels.ops.rows.norm.settings import (
    SpreadSettings,
    spread_backward_settings_for,
    spread_forward_settings_for,
)

WIDTHS = {
    "forward": (512, 1000, 8192, 10000, 16384, 32768, 36000, 65536, 131072),
    "backward": (512, 1000, 8192, 32768),
}
SPILLED_BYTES = {
    # With few registers, so that programs share a multiprocessor.
    ("forward", 32768): 48,
    ("forward", 36000): 48,
}


def _forward(
    width: int, dtype: torch.dtype, added: bool, settings: SpreadSettings | None = None
) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    layer_norm(rows, rows if added else None, rows[0], rows[1], 1e-6, settings)


def _backward(
    width: int, dtype: torch.dtype, added: bool, settings: SpreadSettings | None = None
) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    r = torch.empty(4, device="meta")
    layer_norm_backward(rows, rows if added else None, rows, rows[0], rows[0], r, r, settings)


def _launch(name: str, width: int, dtype: torch.dtype, added: bool) -> Launch:
    """What is loaded ahead lies in shared memory; the few bytes that some spill are cheaper than less
    occupancy."""
    start, registers = {"forward": (_forward, 144), "backward": (_backward, 255)}[name]
    return Launch(
        lambda: start(width, dtype, added),
        registers=registers,
        shared_bytes=161 << 10,
        stack_bytes=SPILLED_BYTES.get((name, width), 8),
        # A row that shares a tile, of one tile, of two, of pieces or of several programs.
    )


LAUNCHES = {
    f"{name}{' added' if added else ''} {width} {dtype}": _launch(name, width, dtype, added)
    for name in WIDTHS
    for width in WIDTHS[name]
    for dtype, added in ((torch.bfloat16, True), (torch.bfloat16, False), (torch.float32, True))
}
LAUNCHES |= {
    f"spread{' added' if added else ''} {width} {dtype}": Launch(
        lambda width=width, dtype=dtype, added=added: _backward(
            width, dtype, added, spread_backward_settings_for(dtype.itemsize, inputs=2 + added)[0]
        ),
        registers=168,
        shared_bytes=104 << 10,
        stack_bytes=8,
    )
    for width, dtype, added in (
        (20000, torch.bfloat16, False),
        (65536, torch.bfloat16, True),
        (65536, torch.float32, False),
    )
}
LAUNCHES |= {
    f"spread forward{' added' if added else ''} {width} {dtype}": Launch(
        lambda width=width, dtype=dtype, added=added: _forward(
            width, dtype, added, spread_forward_settings_for(dtype.itemsize, inputs=1 + added)[0]
        ),
        registers=168,
        shared_bytes=44 << 10,
    )
    for width, dtype, added in (
        (65536, torch.bfloat16, False),
        (65536, torch.bfloat16, True),
        (65536, torch.float32, True),
    )
}
