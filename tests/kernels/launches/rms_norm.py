"""What the RMSNorm kernels are started with."""

import torch

from launch import Launch
from peakward.kernels.ops.rms_norm.triton import rms_norm, rms_norm_backward
from peakward.kernels.ops.rows.norm.settings import (
    SpreadSettings,
    spread_backward_settings_for,
    spread_forward_settings_for,
)

WIDTHS = {
    "forward": (512, 1000, 8192, 16384, 32768, 36000, 65536, 131072),
    "backward": (512, 1000, 8192, 32768),
}
SPILLED_BYTES = {
    ("forward", 32768): 8,
    ("forward", 36000): 8,
    ("forward", 65536): 8,
    ("forward", 131072): 8,
    ("backward", 32768): 16,
}
"""Of rows with a residual, or pieces of them, that registers hold just not: cheaper than a second reading."""


def _forward(
    width: int, dtype: torch.dtype, added: bool, settings: SpreadSettings | None = None
) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    rms_norm(rows, rows if added else None, rows[0], 1e-6, settings)


def _backward(
    width: int, dtype: torch.dtype, added: bool, settings: SpreadSettings | None = None
) -> None:
    rows = torch.empty(4, width, dtype=dtype, device="meta")
    r = torch.empty(4, device="meta")
    rms_norm_backward(rows, rows if added else None, rows, rows[0], r, settings)


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
