"""The attention kernels for Hopper at the settings that no time has decided yet, against cuDNN."""

from collections.abc import Callable, Iterator
from functools import partial

from torch.nn.attention import SDPBackend

from kernels.contest import OURS, Arm, Contest
from kernels.flash_attention import OPERATOR, Shape, flops, inputs, sdpa, shape_of
from peakward.lab.ops.flash_attention.hopper import forward
from peakward.lab.ops.flash_attention.hopper.settings import (
    THREE,
    TWO_DEEP,
    ForwardSettings,
    forward_settings_for,
)
from peakward.lab.ops.flash_attention.rule import Rule


def contests() -> Iterator[Contest]:
    """Causal, long enough for three warpgroups or nearly."""
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
    return _contest(shape, {**arms, "cudnn": partial(_cudnn_forward, shape)})


def _contest(shape: Shape, arms: dict[str, Callable[[], Arm]]) -> Contest:
    return Contest(
        operator=f"{OPERATOR} settings on hopper",
        shape={
            "pass": "forward",
            "d": shape.head_dim,
            "seq": shape.seq_len,
        },
        arms=arms,
        flops=flops(shape, "forward"),
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
