"""Matrix products to be timed: the compute types of a device, and a call in one of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from peakward.levers.precision import fp32_matmuls
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


def product(each: Type, shape: Shape, device_type: DeviceType) -> Product:
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
