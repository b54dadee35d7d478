"""What the attention kernels of Hopper are started with."""

from functools import partial

import torch

from launch import Launch
from peakward.kernels.ops.flash_attention.hopper import backward, forward
from peakward.kernels.ops.flash_attention.hopper.settings import THREE, TWO, TWO_DEEP
from peakward.kernels.ops.flash_attention.rule import Rule

# A program has a multiprocessor to itself: 384 or 512 threads with its 65,536 registers among them,
# dealt anew once the copying warp has given most of its own away.
SHARED_BYTES = 227 << 10


def _inputs(d: int) -> tuple[torch.Tensor, ...]:
    q = torch.empty(2, 8, 1024, d, dtype=torch.bfloat16, device="meta")
    kv = torch.empty(2, 2, 1024, d, dtype=torch.bfloat16, device="meta")
    return q, kv, kv


def _forward(d: int, causal: bool, settings) -> None:
    forward(*_inputs(d), None, Rule(causal, None, 0.1), settings=settings)


def _backward(d: int, causal: bool) -> None:
    q, k, v = _inputs(d)
    lse = torch.empty(2, 8, 1024, device="meta")
    rule = Rule(causal, None, 0.1)
    backward(q, lse, q, k, v, q, lse, None, rule)


def _launch(start, registers: int, stack_bytes: int = 0) -> Launch:
    return Launch(start, registers, SHARED_BYTES, stack_bytes, capabilities=(90,))


LAUNCHES = {
    "forward 128": _launch(partial(_forward, 128, True, TWO), 168),
    "forward 128 not causal": _launch(partial(_forward, 128, False, TWO), 168),
    "forward 96": _launch(partial(_forward, 96, True, TWO), 168),
    "forward 80": _launch(partial(_forward, 80, True, TWO), 168),
    "forward 80 not causal": _launch(partial(_forward, 80, False, TWO), 168),
    "forward 64": _launch(partial(_forward, 64, True, TWO_DEEP), 168),
    "forward 64 not causal": _launch(partial(_forward, 64, False, TWO_DEEP), 168),
    # 160 registers a thread are too few for a mask's columns beside what is in flight; of the loop
    # without a mask nothing is spilled.
    "forward 64 of three": _launch(partial(_forward, 64, True, THREE), 128, 72),
    "forward 64 of three not causal": _launch(partial(_forward, 64, False, THREE), 128, 72),
    # Of the loops over queries nothing is spilled without a mask, and with one at most two words.
    "backward 64": _launch(partial(_backward, 64, True), 168, 72),
    "backward 64 not causal": _launch(partial(_backward, 64, False), 168, 32),
    "backward 128": _launch(partial(_backward, 128, True), 168, 24),
    "backward 128 not causal": _launch(partial(_backward, 128, False), 168, 8),
    # Nothing within the loops; of 96 a few words of addresses, which one warpgroup reads back.
    "backward 80": _launch(partial(_backward, 80, True), 168, 64),
    "backward 80 not causal": _launch(partial(_backward, 80, False), 168, 24),
    "backward 96": _launch(partial(_backward, 96, True), 168, 160),
    "backward 96 not causal": _launch(partial(_backward, 96, False), 168, 88),
}
