"""What the kernels of cross-entropy are started with."""

import torch

from launch import Launch
from peakward.kernels.ops.cross_entropy import triton


def _start(n_tokens: int, vocab: int, dtype: torch.dtype, smoothing: float = 0.0) -> None:
    settings = {"ignore_index": -100, "label_smoothing": smoothing}
    logits = torch.zeros(n_tokens, vocab, dtype=dtype, device="meta")
    targets = torch.zeros(n_tokens, dtype=torch.int64, device="meta")
    loss, lse, sums, count = triton.forward(logits, targets, loss_dtype=dtype, **settings)
    triton.gradient(logits, targets, sums, count, loss, logits, grad_lse=None, **settings)
    triton.losses_and_gradient(logits, targets, lse, lse, **settings)


LAUNCHES = {
    "bf16": Launch(lambda: _start(8192, 32_000, torch.bfloat16), registers=64, shared_bytes=512),
    "bf16 smoothed": Launch(
        lambda: _start(8192, 32_000, torch.bfloat16, 0.1), registers=64, shared_bytes=512
    ),
    "bf16 odd": Launch(
        lambda: _start(8192, 50_257, torch.bfloat16), registers=64, shared_bytes=512
    ),
    "bf16 few rows": Launch(
        lambda: _start(256, 128_256, torch.bfloat16), registers=64, shared_bytes=512
    ),
    "bf16 odd long": Launch(
        lambda: _start(2048, 151_937, torch.bfloat16), registers=64, shared_bytes=512
    ),
    "fp32": Launch(lambda: _start(8192, 32_000, torch.float32), registers=64, shared_bytes=512),
    "fp32 smoothed": Launch(
        lambda: _start(64, 1000, torch.float32, 0.1), registers=64, shared_bytes=512
    ),
    "fp32 long": Launch(
        lambda: _start(256, 151_936, torch.float32), registers=64, shared_bytes=512
    ),
}
