"""Linear layers whose weights are stored in 8 or 4 bits, in Triton: F.linear without a bias. On a CPU 8 bits
are multiplied by torch's own operators.

Under torch.compile each is one operator on a GPU, `peakward::int8_matmul` or `peakward::int4_matmul`, without
a gradient. `reference` makes the weights.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.calling import is_watched, operator
from peakward.kernels.ops.launchable import (
    FLOATS,
    require_floats,
    require_launchable,
    require_no_tangents,
    require_one_device,
)
from peakward.kernels.ops.quantized_matmul import cpu
from peakward.kernels.ops.quantized_matmul.reference import INT4_GROUPS, INT4_TILE

LEAST_INT8_GROUP = 32


def int8_matmul(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """x times the transposed weight, summed in fp32. Made for up to 64 rows of x.

    Args:
        x: (..., k) in fp32, fp16 or bf16.
        weight: (n, k) of int8, contiguous.
        scale: (k / group, n) of a float, contiguous; the group a power of two of at least 32, or k.

    Returns:
        (..., n) in x's dtype; autocast changes nothing.

    Raises:
        ValueError: what the kernel cannot take, or neither a CPU nor a GPU that it runs on.
    """
    op = "int8_matmul"
    require_floats(op, x=x, scale=scale)
    if weight.dtype != torch.int8 or weight.dim() != 2 or not weight.is_contiguous():
        raise ValueError(
            f"{op}: expected a contiguous weight of (n, k) in int8, got {tuple(weight.shape)} in "
            f"{weight.dtype} with strides {weight.stride()}"
        )
    n, k = weight.shape
    _require_width(op, x, k)
    groups = len(scale) if scale.dim() == 2 else 0
    group = k // groups if groups and k % groups == 0 else 0
    if group != k and (group < LEAST_INT8_GROUP or group & (group - 1)):
        group = 0
    if not group or scale.shape != (groups, n) or not scale.is_contiguous():
        raise ValueError(
            f"{op}: expected a contiguous scale of ({k} / group, {n}), the group {k} or a power of "
            f"two from {LEAST_INT8_GROUP} on that divides {k}, got {tuple(scale.shape)} with strides "
            f"{scale.stride()}"
        )
    # A registered operator costs the host 11 µs a call more, and a step of SmolLM2-135M makes 120 in 14 ms. A
    # compiler sees what it is made of.
    if x.is_cpu and (torch.compiler.is_compiling() or not is_watched()):
        return _int8_on_cpu(x, weight, scale)
    return _int8(x, weight, scale)


def int4_matmul(x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """x times the transposed weight, summed in fp32. Made for up to 64 rows of x.

    Args:
        x: (..., k) in fp32, fp16 or bf16.
        weight: (⌈k / 128⌉, n, 16) of int32, contiguous: see `reference.packed`.
        scale: (k / group, n) of a float, contiguous; the group 32, 64 or 128.
        zero: (k / group, n) of uint8, contiguous, each from 0 to 15, which is not checked; None: 8
            everywhere.

    Returns:
        (..., n) in x's dtype; autocast changes nothing.

    Raises:
        ValueError: what the kernel cannot take, or no GPU that it runs on.
    """
    op = "int4_matmul"
    require_floats(op, x=x, scale=scale)
    k = x.shape[-1] if x.dim() else 0
    tiles = -(-k // INT4_TILE)
    words = weight.dtype == torch.int32 and weight.dim() == 3 and weight.is_contiguous()
    if not words or not k or weight.shape[::2] != (tiles, INT4_TILE // 8):
        raise ValueError(
            f"{op}: expected a contiguous weight of ({tiles}, n, {INT4_TILE // 8}) in int32 for x of "
            f"(..., {k}), k at least 1, got {tuple(weight.shape)} in {weight.dtype} with strides "
            f"{weight.stride()}"
        )
    n = weight.shape[1]
    groups = len(scale) if scale.dim() == 2 else 0
    if not groups or k % groups or k // groups not in INT4_GROUPS:
        raise ValueError(
            f"{op}: expected a scale of ({k} / group, {n}), the group one of "
            f"{', '.join(map(str, INT4_GROUPS))} that divides {k}, got {tuple(scale.shape)}"
        )
    for name, each, types in (("scale", scale, FLOATS), ("zero", zero, (torch.uint8,))):
        if each is None:
            continue
        if each.shape != (groups, n) or each.dtype not in types or not each.is_contiguous():
            names = " or ".join(map(str, types))
            raise ValueError(
                f"{op}: expected a contiguous {name} of ({groups}, {n}) in {names}, got "
                f"{tuple(each.shape)} in {each.dtype} with strides {each.stride()}"
            )
    return _int4(x, weight, scale, zero)


@operator("peakward::int8_matmul")
def _int8(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    if x.is_cpu:
        require_no_tangents("int8_matmul")
        return _int8_on_cpu(x, weight, scale)
    require_launchable("int8_matmul", x, weight, scale)
    from peakward.kernels.ops.quantized_matmul import triton as kernels

    with torch.cuda.device_of(x):
        out = kernels.int8_matmul(
            _rows(x),
            weight,
            scale,
            n_multiprocessors=_multiprocessors(x, kernels.H100_MULTIPROCESSORS),
        )
    return out.view(*x.shape[:-1], len(weight))


def _int8_on_cpu(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    require_one_device("int8_matmul", x, weight, scale)
    return cpu.int8_matmul(_rows(x), weight, scale).view(*x.shape[:-1], len(weight))


@_int8.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    require_one_device("int8_matmul", x, weight, scale)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@operator("peakward::int4_matmul")
def _int4(x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    require_launchable("int4_matmul", x, weight, scale, zero)
    from peakward.kernels.ops.quantized_matmul import triton as kernels

    with torch.cuda.device_of(x):
        out = kernels.int4_matmul(
            _rows(x),
            weight,
            scale,
            zero,
            n_multiprocessors=_multiprocessors(x, kernels.H100_MULTIPROCESSORS),
        )
    return out.view(*x.shape[:-1], weight.shape[1])


@_int4.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    require_one_device("int4_matmul", x, weight, scale, zero)
    return x.new_empty((*x.shape[:-1], weight.shape[1]))


def _rows(x: Tensor) -> Tensor:
    """(m, k), each row contiguous."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _multiprocessors(x: Tensor, default: int) -> int:
    if not x.is_cuda:
        return default
    return torch.cuda.get_device_properties(x.device).multi_processor_count


def _require_width(op: str, x: Tensor, k: int) -> None:
    if k == 0 or x.dim() == 0 or x.shape[-1] != k:
        raise ValueError(f"{op}: expected x of (..., {k}), k at least 1, got {tuple(x.shape)}")
