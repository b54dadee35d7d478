"""What the kernels of the linear cross-entropy are started with."""

import torch

from launch import Launch
from peakward.kernels.ops.linear_cross_entropy import triton


def _start(
    dtype: torch.dtype, vocab: int = 32_000, settings: triton.Settings | None = None
) -> None:
    hidden = torch.zeros(4096, 768, dtype=dtype, device="meta")
    weight = torch.zeros(vocab, 768, dtype=dtype, device="meta")
    targets = torch.zeros(4096, dtype=torch.int64, device="meta")
    one = torch.zeros((), device="meta")
    out = torch.zeros(4096, 8192, dtype=dtype, device="meta")
    _, sums = triton.losses(hidden, weight, targets, ignore_index=-100, settings=settings)
    triton.gradient(
        hidden, weight, targets, sums, one, one, out,
        first_column=8192, ignore_index=-100, settings=settings,
    )  # fmt: skip


def _scale(dtype: torch.dtype, to: torch.dtype) -> None:
    one = torch.zeros((), dtype=to, device="meta")
    x = torch.zeros(4096, 768, dtype=dtype, device="meta")
    triton.scaled(x, one, one.float(), to)


def _products(label: str, dtype: torch.dtype, *sizes: int) -> dict[str, Launch]:
    """All of shared memory that a program may have: 163 KiB on an A100, 227 on an H100."""
    return {
        f"{label} on {capability}": Launch(
            lambda: _start(dtype, *sizes),
            registers=255,
            shared_bytes=shared_bytes,
            capabilities=(capability,),
        )
        for capability, shared_bytes in ((80, 163 << 10), (90, 227 << 10))
    }


LAUNCHES = {
    **_products("bf16", torch.bfloat16),
    **_products("bf16 odd", torch.bfloat16, 50_257),
    **_products("fp32", torch.float32),
    "scale": Launch(lambda: _scale(torch.bfloat16, torch.bfloat16), registers=64, shared_bytes=0),
    "scale sums": Launch(
        lambda: _scale(torch.float32, torch.bfloat16), registers=80, shared_bytes=0
    ),
}
