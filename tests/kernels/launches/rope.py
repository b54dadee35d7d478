"""What the RoPE kernel is started with."""

import torch

from launch import Launch
from peakward.kernels.ops.rope.triton import rope, turn


def _both(head_dim: int, dtype: torch.dtype, angles: torch.dtype) -> None:
    qkv = torch.empty(2, 64, 12, head_dim, dtype=dtype, device="meta").transpose(1, 2)
    cos = torch.empty(64, head_dim // 2, dtype=angles, device="meta")
    turn(qkv, qkv, cos, cos, n_turned=10, inverse=False)
    rope(qkv.contiguous(), cos, cos, n_turned=10, inverse=True)
    whole = torch.empty(2, 64, head_dim, dtype=angles, device="meta")
    rope(qkv, whole, whole, n_turned=12, inverse=True)


def _neighbours(head_dim: int, dtype: torch.dtype) -> None:
    x = torch.empty(2, 64, 12, head_dim, dtype=dtype, device="meta").transpose(1, 2)
    for width in (head_dim // 2, head_dim):
        angles = torch.empty(64, width, dtype=dtype, device="meta")
        rope(x, angles, angles, n_turned=12, inverse=True, neighbours=True)


LAUNCHES = {
    f"{head_dim} {dtype} by {angles}": Launch(
        lambda head_dim=head_dim, dtype=dtype, angles=angles: _both(head_dim, dtype, angles),
        registers=96,
        shared_bytes=16 << 10,
    )
    for head_dim in (64, 80, 128)
    for dtype, angles in (
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
    )
} | {
    f"{head_dim} {dtype} neighbours": Launch(
        lambda head_dim=head_dim, dtype=dtype: _neighbours(head_dim, dtype),
        registers=128,
        shared_bytes=16 << 10,
    )
    for head_dim in (64, 80, 128)
    for dtype in (torch.bfloat16, torch.float32)
}
