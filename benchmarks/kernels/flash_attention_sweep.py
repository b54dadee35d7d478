"""The attention kernel at other block sizes, to choose its settings by."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.contest import OURS, Arm, Contest
from kernels.flash_attention import OPERATOR, Shape, flops, inputs, shape_of
from peakward.kernels.ops.flash_attention.rule import Rule
from peakward.kernels.ops.flash_attention.triton import backward, forward
from peakward.kernels.ops.flash_attention.triton.problem import capability
from peakward.kernels.ops.flash_attention.triton.settings import (
    BY_KEYS,
    BY_QUERIES,
    FORWARD,
    BackwardSettings,
    Blocks,
    ForwardSettings,
    backward_settings_for,
    forward_settings_for,
)


def contests() -> Iterator[Contest]:
    """Every candidate on 4,096 causal, with and without descriptors, then fp32's products."""
    for head_dim in (80, 64, 128, 96, 256, 32):
        yield forward_sweep(shape_of(head_dim, 4096))
        yield backward_sweep(shape_of(head_dim, 4096))
    for head_dim in (64, 128):
        yield precision_sweep(head_dim)


def forward_sweep(shape: Shape) -> Contest:
    """Blocks and descriptors of the forward pass."""
    default = forward_settings_for(shape.head_dim, shape.dtype, capability())
    candidates = {OURS: default, "pointers": default._replace(descriptors=False)}
    candidates |= {_label(each): default._replace(blocks=each) for each in FORWARD}
    return _contest(
        shape,
        "forward",
        {name: partial(_forward, shape, settings) for name, settings in candidates.items()},
    )


def backward_sweep(shape: Shape) -> Contest:
    """Blocks of both passes, and descriptors."""
    default = backward_settings_for(shape.head_dim, shape.dtype, capability())
    candidates = {OURS: default}
    for way, base in (("", default), ("pointers ", default._replace(descriptors=False))):
        for each in BY_KEYS:
            candidates[f"{way}keys {_label(each)}"] = base._replace(by_keys=each)
        for each in BY_QUERIES:
            candidates[f"{way}queries {_label(each)}"] = base._replace(by_queries=each)
    return _contest(
        shape,
        "backward",
        {name: partial(_backward, shape, settings) for name, settings in candidates.items()},
    )


def precision_sweep(head_dim: int) -> Contest:
    """fp32's products, with their errors against fp64: torch's own is an arm."""
    shape = Shape(head_dim, 1024, 8, 8, 1, dtype=torch.float32)
    default = forward_settings_for(head_dim, shape.dtype, capability())
    arms: dict[str, Callable[[], Arm]] = {
        precision: partial(_forward, shape, default._replace(precision=precision))
        for precision in ("bf16x6", "tf32x3", "ieee")
    }
    return _contest(
        shape, "forward", {**arms, "torch": partial(_torch, shape)}, exact=partial(_exact, shape)
    )


def _label(blocks: Blocks) -> str:
    return f"{blocks.queries}x{blocks.keys} w{blocks.num_warps} s{blocks.num_stages}"


def _contest(
    shape: Shape, name: str, arms: dict[str, Callable[[], Arm]], **options: Any
) -> Contest:
    return Contest(
        operator=f"{OPERATOR} settings",
        shape={"pass": name, "d": shape.head_dim, "seq": shape.seq_len, "dtype": str(shape.dtype)},
        arms=arms,
        flops=flops(shape, name.split(maxsplit=1)[0]),
        **options,
    )


def _rule(shape: Shape) -> Rule:
    return Rule(shape.causal, shape.window, shape.head_dim**-0.5)


def _forward(shape: Shape, settings: ForwardSettings) -> Arm:
    q, k, v, _ = inputs(shape)
    return lambda: forward(q, k, v, None, _rule(shape), settings=settings)[0]


def _backward(shape: Shape, settings: BackwardSettings) -> Arm:
    q, k, v, dout = inputs(shape)
    out, lse = forward(q, k, v, None, _rule(shape))
    return lambda: backward(dout, None, q, k, v, out, lse, None, _rule(shape), settings=settings)


def _torch(shape: Shape) -> Arm:
    q, k, v, _ = inputs(shape)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _exact(shape: Shape) -> Tensor:
    q, k, v, _ = (each.double() for each in inputs(shape))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
