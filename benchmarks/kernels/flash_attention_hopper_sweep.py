"""The attention kernels for Hopper at the settings that were chosen between, against cuDNN."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn.attention import SDPBackend

from kernels.contest import OURS, Arm, Contest
from kernels.flash_attention import OPERATOR, Shape, flops, inputs, sdpa, shape_of
from peakward.kernels.ops.flash_attention.hopper import backward, forward
from peakward.kernels.ops.flash_attention.hopper.settings import (
    HALVES,
    THREE,
    TWO_DEEP,
    WHOLE,
    BackwardSettings,
    ForwardSettings,
    backward_settings_for,
    forward_settings_for,
)
from peakward.kernels.ops.flash_attention.rule import Rule


def contests() -> Iterator[Contest]:
    """Backward by halves of a tile of queries or whole ones; forward, causal, long enough for three
    warpgroups or nearly."""
    for head_dim in (80, 64):
        for seq_len in (4096, 1024, 16_384):
            yield backward_sweep(shape_of(head_dim, seq_len))
        yield backward_sweep(shape_of(head_dim, 4096, causal=False))
    for seq_len in (16_384, 8192, 4096):
        yield forward_sweep(shape_of(64, seq_len))


def forward_sweep(shape: Shape) -> Contest:
    """Of head dimension 64: whether three warpgroups gain by what two do, more tiles on their way."""
    candidates = {
        OURS: forward_settings_for(shape.head_dim, shape.seq_len, causal=shape.causal),
        "two": TWO_DEEP,
        "three": THREE,
        "three queries 2": THREE._replace(q_stages=2),
        "three queries 2 stages 4": THREE._replace(q_stages=2, stages=4),
    }
    arms = {name: partial(_forward, shape, each) for name, each in candidates.items()}
    return _contest(shape, "forward", {**arms, "cudnn": partial(_cudnn_forward, shape)})


def backward_sweep(shape: Shape) -> Contest:
    """Of head dimensions 64 and 80: the scores of 128 queries at once, or of 64 and then 64, the next
    asked for before the last are through."""
    stages = backward_settings_for(shape.head_dim).kv_stages
    candidates = {
        OURS: backward_settings_for(shape.head_dim),
        "whole": WHOLE._replace(kv_stages=stages),
        "halves": HALVES._replace(kv_stages=stages),
    }
    arms = {name: partial(_backward, shape, each) for name, each in candidates.items()}
    return _contest(shape, "backward", {**arms, "cudnn": partial(_cudnn_backward, shape)})


def _contest(shape: Shape, name: str, arms: dict[str, Callable[[], Arm]]) -> Contest:
    return Contest(
        operator=f"{OPERATOR} settings on hopper",
        shape={
            "pass": name,
            "d": shape.head_dim,
            "seq": shape.seq_len,
            "mask": "causal" if shape.causal else "none",
        },
        arms=arms,
        flops=flops(shape, name),
    )


def _rule(shape: Shape) -> Rule:
    return Rule(shape.causal, None, shape.head_dim**-0.5)


def _forward(shape: Shape, settings: ForwardSettings) -> Arm:
    q, k, v, _ = inputs(shape)
    return lambda: forward(q, k, v, None, _rule(shape), settings=settings)[0]


def _cudnn_forward(shape: Shape) -> Arm:
    q, k, v, _ = inputs(shape)
    attention = sdpa(shape, SDPBackend.CUDNN_ATTENTION)
    return lambda: attention(q, k, v)


def _backward(shape: Shape, settings: BackwardSettings) -> Arm:
    q, k, v, dout = inputs(shape)
    rule = _rule(shape)
    out, lse = forward(q, k, v, None, rule)
    return lambda: backward(dout, None, q, k, v, out, lse, None, rule, settings=settings)


def _cudnn_backward(shape: Shape) -> Arm:
    q, k, v, dout = inputs(shape)
    for each in (q, k, v):
        each.requires_grad_()
    out = sdpa(shape, SDPBackend.CUDNN_ATTENTION)(q, k, v)
    return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
