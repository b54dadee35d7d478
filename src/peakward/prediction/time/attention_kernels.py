"""How long each kernel of attention takes beside the one that a calibration timed.

A calibration has one head dimension, 64, and torch's own choice of kernel, cuDNN's on Hopper. By itself
each other kernel, and each other head dimension, took nearly the same multiple of its time from 512 to
16,384 causal tokens: bf16, an H100, `2026-11-22-h100-kernel-speed-flash_attention` and `…-backward`.
"""

from peakward.hardware.attention_backend import ComputeCapability
from peakward.records.calibration import AttentionPass

TIMES: dict[str, dict[AttentionPass, dict[int, float]]] = {
    "cudnn": {
        "forward": {64: 1.00, 80: 1.13, 96: 0.99, 128: 0.76},
        "backward": {64: 1.00, 80: 1.11, 96: 0.98, 128: 0.80},
    },
    "flash": {
        "forward": {64: 1.58, 80: 1.75, 96: 1.39, 128: 1.44},
        "backward": {64: 1.60, 80: 2.00, 96: 1.67, 128: 1.46},
    },
    "own": {
        "forward": {64: 1.22, 80: 1.13, 96: 1.09, 128: 0.97},
        "backward": {64: 1.08, 80: 1.16, 96: 1.04, 128: 0.93},
    },
    "own-hopper": {
        "forward": {64: 0.97, 80: 0.89, 96: 0.78, 128: 0.68},
        "backward": {64: 0.85, 80: 0.91, 96: 0.90, 128: 0.79},
    },
}
"""Medians over the lengths. Single lengths lie within 10% of them, but at 512 (up to 1.24 times), for the
flash kernel of 64 at 1,000 (1.43), for Peakward's portable one of 64 (0.83 to 1.19) and for that for
Hopper of 64 at 16,384 (0.88)."""
HOPPER = 9
TIMED_ITEM_BYTES = 2


def relative_time(
    kernel: str, pass_: AttentionPass, head_dim: int, item_bytes: int, capability: ComputeCapability
) -> float | None:
    """Over that of what was calibrated, of as many FLOPs; None where nothing was timed.

    A head dimension between those of the table is taken for the next, to which kernels pad it.
    """
    known = TIMES.get(kernel)
    if known is None or capability[0] != HOPPER or item_bytes != TIMED_ITEM_BYTES:
        return None
    wider = [each for each in known[pass_] if each >= head_dim]
    return known[pass_][min(wider)] if wider else None
