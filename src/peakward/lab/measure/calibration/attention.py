"""torch's scaled_dot_product_attention, forward and backward, at two lengths."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch.nn import functional

from peakward.lab.measure.calibration.attempt import Attempt
from peakward.lab.measure.calibration.product import Type, types
from peakward.lab.measure.calibration.timing import Call, device_s
from peakward.records.calibration import AttentionPass, AttentionRate
from peakward.records.case import DeviceType

PASSES: tuple[AttentionPass, ...] = ("forward", "backward")
TYPES = ("fp32", "bf16", "fp16")
HEAD_DIM = 64
"""The head dimension of all named sizes but the largest."""


class Size(NamedTuple):
    """The size of queries, keys and values alike: [batch, heads, seq_len, HEAD_DIM]."""

    batch: int
    heads: int
    seq_len: int


SIZES: dict[DeviceType, tuple[Size, ...]] = {
    "cuda": (Size(4, 16, 1024), Size(4, 16, 4096)),
    "cpu": (Size(1, 8, 128), Size(1, 8, 512)),
}


def attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """Both passes at every size, in the 16-bit types and in fp32 without tf32."""
    chosen = [each for each in types(device_type) if each.name in TYPES]
    for each, size, pass_ in product(chosen, SIZES[device_type], PASSES):
        name = f"{each.name} {pass_} at {size.seq_len}"
        yield Attempt(name, partial(_rate, each, pass_, size, device_type))


def flops(size: Size, pass_: AttentionPass) -> int:
    """The model FLOPs: two products of 2·seq²·head_dim a head, half of each under the causal mask.

    The backward pass has twice those of the forward pass, as in `prediction.flops`: recomputed scores
    are not counted.
    """
    forward = 2 * size.batch * size.heads * size.seq_len**2 * HEAD_DIM
    return forward if pass_ == "forward" else 2 * forward


def call(each: Type, pass_: AttentionPass, size: Size, device_type: DeviceType) -> Call:
    """One pass over random operands, ready to be called; the backward pass gives three gradients."""
    shape = (size.batch, size.heads, size.seq_len, HEAD_DIM)
    q, k, v = (torch.randn(shape, device=device_type).to(each.dtype) for _ in range(3))
    if pass_ == "forward":
        return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    for operand in (q, k, v):
        operand.requires_grad_()
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def _rate(each: Type, pass_: AttentionPass, size: Size, device_type: DeviceType) -> AttentionRate:
    with each.setting():
        pass_s = device_s(call(each, pass_, size, device_type), device_type)
    return AttentionRate(
        compute_type=each.name,
        pass_=pass_,
        batch_size=size.batch,
        n_heads=size.heads,
        seq_len=size.seq_len,
        head_dim=HEAD_DIM,
        flops_per_s=flops(size, pass_) / pass_s,
    )
