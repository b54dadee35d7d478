"""Which kernel torch's scaled_dot_product_attention runs on a GPU: the one that is named, or the
first in torch's order that takes the inputs.

After torch's `sdp_utils.cpp`. Captures on an NVIDIA H200 (compute capability 9.0, torch 2.11.0 for
CUDA 13.0) hold the choice by type, mask, shared heads, and head_dim of 6, of 40 to 128 and of 256.
The rest is read from that source and held by nothing: what lies between 128 and 256, where a torch
after 2.11 trains on cuDNN no more, and every other compute capability. cuDNN is first on 9.x and
10.x alone, and only where it is newer than 9.15, which torch for CUDA 12 does not bring; elsewhere
flash is.
"""

from typing import Literal, NamedTuple

from peakward.prediction.inference.cache import held_positions
from peakward.prediction.operators.tape import FLOAT
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError

Backend = Literal["cudnn", "flash", "efficient", "math"]
ComputeCapability = tuple[int, int]
HOPPER: ComputeCapability = (9, 0)


class Inputs(NamedTuple):
    """The inputs on which the choice depends."""

    dtype: str
    head_dim: int
    masked: bool
    """By more than causality: a window, or ALiBi's bias."""
    grouped: bool
    """Several query heads share one of keys and values."""
    differentiated: bool
    n_keys: int
    compute_capability: ComputeCapability


def inputs(case: ModelCase, dtype: str, compute_capability: ComputeCapability) -> Inputs:
    """The inputs of the attention of a case that computes in `dtype`."""
    shape, workload = case.model, case.workload
    decodes = workload.pass_ == "decode"
    reach = held_positions(shape, workload.seq_len)
    windowed = reach < workload.seq_len and not decodes
    return Inputs(
        dtype=dtype,
        head_dim=shape.head_dim,
        masked=windowed or shape.positions == "alibi",
        grouped=shape.n_heads != shape.n_kv_heads,
        differentiated=workload.trains,
        n_keys=reach if decodes else workload.seq_len,
        compute_capability=compute_capability,
    )


def first_backend(given: Inputs) -> Backend:
    """The backend that `sdpa` runs."""
    order: tuple[Backend, ...] = ("flash", "efficient")
    if given.compute_capability[0] in (9, 10):
        order = ("cudnn", *order)
    return next((each for each in order if _obstacle(each, given) is None), "math")


def named_backend(backend: Backend, given: Inputs) -> Backend:
    """Checks that this backend takes the inputs, and returns it.
    Raises:
        PeakwardError: it does not take the inputs; torch says "No available kernel".
    """
    obstacle = _obstacle(backend, given)
    if obstacle is not None:
        raise PeakwardError(
            f"expected inputs that torch's {backend} attention takes, got {obstacle}: "
            "use sdpa, which finds a kernel that takes them"
        )
    return backend


def _obstacle(backend: Backend, given: Inputs) -> str | None:
    """Why the kernel cannot serve, if so."""
    return {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient, "math": _math}[backend](
        given
    )


def _cudnn(given: Inputs) -> str | None:
    widest = 256 if given.compute_capability == HOPPER else 128
    if given.dtype == FLOAT:
        return "float32, not a type of 16 bits"
    if given.head_dim % 8:
        return f"head_dim {given.head_dim}, not a multiple of 8"
    if given.n_keys == 1:
        return "one key"
    return f"head_dim {given.head_dim}, above {widest}" if given.head_dim > widest else None


def _flash(given: Inputs) -> str | None:
    small = (8, 6) <= given.compute_capability <= (8, 9) or given.compute_capability[0] == 12
    if given.dtype == FLOAT:
        return "float32, not a type of 16 bits"
    if given.masked:
        return "a window or ALiBi's bias, not a causal mask"
    if given.differentiated and small and 192 < given.head_dim <= 224:
        return f"head_dim {given.head_dim} to train with, of 193 to 224, on this GPU"
    return f"head_dim {given.head_dim}, above 256" if given.head_dim > 256 else None


def _efficient(given: Inputs) -> str | None:
    multiple = 4 if given.dtype == FLOAT else 8
    if given.grouped:
        return "heads that share keys and values"
    if given.head_dim % multiple:
        return f"head_dim {given.head_dim}, not a multiple of {multiple} in {given.dtype}"
    return None


def _math(_given: Inputs) -> None:
    return None
