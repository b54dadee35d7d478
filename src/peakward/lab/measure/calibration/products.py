"""Matrix products by shape, and torch's attention, to be timed: in the compute types of a device.

Products are square, thin in each direction, and over whole or broken waves; attention is
scaled_dot_product_attention, forward and backward, at two lengths.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from peakward.lab.measure.calibration.timing import (
    MAX_CALL_S,
    Attempt,
    Call,
    NotMeasurableError,
    device_s,
)
from peakward.levers.precision import fp32_matmuls
from peakward.records.calibration import AttentionPass, AttentionRate, Kind, ProductRate
from peakward.records.case import DeviceType

Product = Callable[[], Tensor]


class Type(NamedTuple):
    """A compute type that this device multiplies in."""

    name: str
    dtype: torch.dtype
    setting: Callable[[], AbstractContextManager[None]] = nullcontext


class Shape(NamedTuple):
    """The shape of a product [m, k] × [k, n]."""

    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """The FLOPs; a multiply-add counts as two."""
        return 2 * self.m * self.n * self.k


def types(device_type: DeviceType) -> Iterator[Type]:
    """The types with units of their own on this device; on a CPU, those that torch multiplies."""
    capability = torch.cuda.get_device_capability() if device_type == "cuda" else (0, 0)
    yield Type("fp32", torch.float32, lambda: fp32_matmuls("fp32"))
    if capability >= (8, 0):
        yield Type("tf32", torch.float32, lambda: fp32_matmuls("tf32"))
    if device_type == "cpu" or capability >= (8, 0):
        yield Type("bf16", torch.bfloat16)
    if device_type == "cpu" or capability >= (7, 0):
        yield Type("fp16", torch.float16)
    if capability >= (8, 9):
        yield Type("fp8", torch.float8_e4m3fn)


def product_call(each: Type, shape: Shape, device_type: DeviceType) -> Product:
    """A product of random operands in the compute type, ready to be called.

    Operands are random because a tensor core draws less power and clocks higher on zeros. The result
    goes to the same place each time. fp8 needs its second operand column-major, and n and k multiples
    of 16.
    """
    a = torch.randn(shape.m, shape.k, device=device_type).to(each.dtype)
    b = torch.randn(shape.k, shape.n, device=device_type).to(each.dtype)
    if each.dtype == torch.float8_e4m3fn:
        one = torch.ones((), device=device_type)
        columns = b.t().contiguous().t()
        return lambda: torch._scaled_mm(
            a, columns, one, one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    out = torch.empty(shape.m, shape.n, dtype=each.dtype, device=device_type)
    return lambda: torch.mm(a, b, out=out)


SQUARES: dict[DeviceType, tuple[int, ...]] = {
    "cuda": (512, 1024, 2048, 4096, 8192),
    "cpu": (256, 512, 1024),
}
THIN: dict[DeviceType, dict[Kind, Shape]] = {
    "cuda": {
        "small m": Shape(16, 16384, 8192),
        "small n": Shape(16384, 16, 8192),
        "small k": Shape(4096, 4096, 64),
    },
    "cpu": {
        "small m": Shape(4, 4096, 4096),
        "small n": Shape(4096, 4, 4096),
        "small k": Shape(1024, 1024, 16),
    },
}
"""The large operand of small m and small n is larger than the last cache, as a decoder's weights
are: 128 MiB on a GPU even in fp8. Multiples of 16, which fp8 needs."""
TILE = 256
"""The longer side of the largest tiles in the names of cuBLAS's kernels (128 × 256, 256 × 128)."""
DEPTH = 4096


def product_attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """Every shape in every compute type, the least work first."""
    every = shapes(device_type)
    for each in types(device_type):
        known: list[float] = []
        for kind, shape in sorted(every, key=lambda pair: pair[1].flops):
            name = f"{each.name} {kind} {shape.m} × {shape.n} × {shape.k}"
            yield Attempt(name, partial(_product_rate, each, kind, shape, device_type, known))
    if device_type == "cpu":
        yield Attempt("partial wave", _no_waves)


def shapes(device_type: DeviceType) -> tuple[tuple[Kind, Shape], ...]:
    """The shapes that are multiplied on this device, with their kinds."""
    squares: list[tuple[Kind, Shape]] = [
        ("square", Shape(size, size, size)) for size in SQUARES[device_type]
    ]
    if device_type == "cpu":
        return (*squares, *THIN["cpu"].items())
    n_sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return (*squares, *THIN["cuda"].items(), *waves(n_sms))


def waves(n_sms: int) -> tuple[tuple[Kind, Shape], ...]:
    """A product of one tile for each multiprocessor, and one with a tile more, which takes another
    round.

    This assumes tiles of TILE × TILE. Smaller tiles make two or four whole rounds of the first, and
    leave as many tiles over in the second.
    """
    return (
        ("whole waves", Shape(TILE * n_sms, TILE, DEPTH)),
        ("partial wave", Shape(TILE * (n_sms + 1), TILE, DEPTH)),
    )


def _product_rate(
    each: Type, kind: Kind, shape: Shape, device_type: DeviceType, known: list[float]
) -> ProductRate:
    """The rate of the product. `known` are the type's rates so far; they show that a product would take
    too long."""
    expected_s = shape.flops / max(known) if known else 0.0
    if expected_s > MAX_CALL_S:
        raise NotMeasurableError(
            f"at the {max(known) / 1e9:.2g} GFLOP/s of smaller products it would take "
            f"{expected_s:.2g} s, more than {MAX_CALL_S} s"
        )
    with each.setting():
        product_s = device_s(product_call(each, shape, device_type), device_type)
    known.append(shape.flops / product_s)
    return ProductRate(
        kind=kind,
        compute_type=each.name,
        m=shape.m,
        n=shape.n,
        k=shape.k,
        flops_per_s=shape.flops / product_s,
    )


def _no_waves() -> ProductRate:
    raise NotMeasurableError("a CPU runs no waves of thread blocks")


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


def attention_attempts(device_type: DeviceType) -> Iterator[Attempt]:
    """Both passes at every size, in the 16-bit types and in fp32 without tf32."""
    chosen = [each for each in types(device_type) if each.name in TYPES]
    for each, size, pass_ in product(chosen, SIZES[device_type], PASSES):
        name = f"{each.name} {pass_} at {size.seq_len}"
        yield Attempt(name, partial(_attention_rate, each, pass_, size, device_type))


def attention_flops(size: Size, pass_: AttentionPass) -> int:
    """The model FLOPs: two products of 2·seq²·head_dim a head, half of each under the causal mask.

    The backward pass has twice those of the forward pass, as in `prediction.flops`: recomputed scores
    are not counted.
    """
    forward = 2 * size.batch * size.heads * size.seq_len**2 * HEAD_DIM
    return forward if pass_ == "forward" else 2 * forward


def attention_call(each: Type, pass_: AttentionPass, size: Size, device_type: DeviceType) -> Call:
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


def _attention_rate(
    each: Type, pass_: AttentionPass, size: Size, device_type: DeviceType
) -> AttentionRate:
    with each.setting():
        pass_s = device_s(attention_call(each, pass_, size, device_type), device_type)
    return AttentionRate(
        compute_type=each.name,
        pass_=pass_,
        batch_size=size.batch,
        n_heads=size.heads,
        seq_len=size.seq_len,
        head_dim=HEAD_DIM,
        flops_per_s=attention_flops(size, pass_) / pass_s,
    )
