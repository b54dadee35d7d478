"""What the attention kernels of Hopper are started with."""

from functools import partial

import torch

from launch import Launch
from peakward.lab.ops.flash_attention.hopper import backward, forward
from peakward.lab.ops.flash_attention.hopper.settings import (
    AHEAD,
    AHEAD_QUADS,
    AHEAD_QUADS_DEEP,
    CARRIED,
    CARRIED_DEEP,
    CARRIED_THREE,
    EACH,
    PAIRS,
    THREE,
    TWO,
)
from peakward.lab.ops.flash_attention.rule import Rule

# A program has a multiprocessor to itself: 384 or 512 threads with its 65,536 registers among them,
# dealt anew once the copying warp has given most of its own away.
SHARED_BYTES = 227 << 10


def _inputs(d: int) -> tuple[torch.Tensor, ...]:
    q = torch.empty(2, 8, 1024, d, dtype=torch.bfloat16, device="meta")
    kv = torch.empty(2, 2, 1024, d, dtype=torch.bfloat16, device="meta")
    return q, kv, kv


def _forward(d: int, causal: bool, settings) -> None:
    forward(*_inputs(d), None, Rule(causal, None, 0.1), settings=settings)


def _backward(d: int, causal: bool, settings=EACH) -> None:
    q, k, v = _inputs(d)
    lse = torch.empty(2, 8, 1024, device="meta")
    rule = Rule(causal, None, 0.1)
    backward(q, lse, q, k, v, q, lse, None, rule, settings=settings)


def _launch(start, registers: int, stack_bytes: int = 0) -> Launch:
    return Launch(start, registers, SHARED_BYTES, stack_bytes, capabilities=(90,))


LAUNCHES = {
    "forward 128": _launch(partial(_forward, 128, True, TWO), 168),
    "forward 128 not causal": _launch(partial(_forward, 128, False, TWO), 168),
    "forward 64": _launch(partial(_forward, 64, True, TWO), 168),
    "forward 64 pairs": _launch(partial(_forward, 64, True, TWO._replace(pairs=True)), 168),
    "forward 64 carried": _launch(partial(_forward, 64, True, CARRIED_DEEP), 168),
    "forward 128 carried": _launch(partial(_forward, 128, True, CARRIED), 168),
    "forward 128 carried not causal": _launch(partial(_forward, 128, False, CARRIED), 168),
    "forward 80": _launch(partial(_forward, 80, True, TWO), 168),
    "forward 80 carried": _launch(partial(_forward, 80, True, CARRIED), 168),
    "forward 96 carried": _launch(partial(_forward, 96, True, CARRIED), 168),
    # 160 registers a thread are too few for a mask's columns beside what is in flight; of the loop
    # without a mask nothing is spilled.
    "forward 64 of three": _launch(partial(_forward, 64, True, THREE), 128, 72),
    "forward 64 of three not causal": _launch(partial(_forward, 64, False, THREE), 128, 72),
    "forward 64 of three carried": _launch(partial(_forward, 64, True, CARRIED_THREE), 128, 72),
    # 104 and 48 bytes are spilled; what of it is read again in the loop was not looked into.
    "backward 64": _launch(partial(_backward, 64, True), 168, 128),
    "backward 64 pairs": _launch(partial(_backward, 64, True, PAIRS), 168, 104),
    # Of these nothing is spilled in the loop.
    "backward 64 ahead": _launch(partial(_backward, 64, True, AHEAD), 168, 104),
    "backward 64 quads deep": _launch(partial(_backward, 64, True, AHEAD_QUADS_DEEP), 168, 104),
    "backward 64 quads": _launch(partial(_backward, 64, True, AHEAD_QUADS), 168, 104),
    "backward 128 quads": _launch(partial(_backward, 128, True, AHEAD_QUADS), 168, 80),
    "backward 128 ahead": _launch(partial(_backward, 128, True, AHEAD), 168, 80),
    "backward 128 pairs": _launch(partial(_backward, 128, True, PAIRS), 168, 64),
    "backward 128": _launch(partial(_backward, 128, True), 168, 64),
}
