"""Which kernel torch's scaled_dot_product_attention runs on a GPU: the one that is named, or the
first in torch's order that takes the inputs.

After torch's `sdp_utils.cpp`. Captures on an NVIDIA H200 (compute capability 9.0, torch 2.11.0 for
CUDA 13.0) hold the choice by type, mask, shared heads, and head_dim of 6, of 40 to 128 and of 256.
The rest is read from that source and held by nothing: what lies between 128 and 256, where a torch
after 2.11 trains on cuDNN no more, values of another head_dim, and every other compute capability.
cuDNN is first on 9.x and 10.x alone, and only where it is newer than 9.15, which torch for CUDA 12
does not bring; elsewhere flash is.
"""

from collections.abc import Collection
from typing import Literal, NamedTuple, get_args

from peakward.records.errors import PeakwardError

Backend = Literal["cudnn", "flash", "efficient", "math"]
ComputeCapability = tuple[int, int]
HOPPER: ComputeCapability = (9, 0)
BACKENDS: tuple[Backend, ...] = get_args(Backend)
_FLOAT = "float32"
_SIXTEEN_BIT = ("bfloat16", "float16")
_LATENT = (192, 128)
"""DeepSeek-V3's keys and values, which cuDNN has a kernel for since 9.11."""


class Inputs(NamedTuple):
    """The inputs on which the choice depends."""

    dtype: str
    head_dim: int
    masked: bool
    """By more than the causality of as many queries as keys: a window, ALiBi's bias, padding."""
    grouped: bool
    """Several query heads share one of keys and values."""
    differentiated: bool
    n_keys: int
    compute_capability: ComputeCapability
    value_dim: int | None = None
    """The head_dim of values, where it is not that of queries and keys, as with latent attention."""
    broadcast: bool = False
    """Batches or heads of keys and values are fewer without `enable_gqa`: of torch's kernels only math
    broadcasts them (`check_batch_size_and_num_heads_dense`), as for Falcon's one head of keys."""


def first_backend(given: Inputs, among: Collection[Backend] = BACKENDS) -> Backend:
    """The backend that `sdpa` runs.

    Args:
        among: Those that torch may take: `torch.nn.attention.sdpa_kernel` leaves some out.

    Raises:
        PeakwardError: none of them takes the inputs; torch says "No available kernel".
    """
    order: tuple[Backend, ...] = ("flash", "efficient", "math")
    if given.compute_capability[0] in (9, 10):
        order = ("cudnn", *order)
    found = next((x for x in order if x in among and _obstacle(x, given) is None), None)
    if found is None:
        raise PeakwardError(
            f"expected inputs that one of torch's kernels of attention takes, got none among "
            f"{', '.join(among)}: let torch take math, which takes all inputs"
        )
    return found


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
    if given.broadcast and backend != "math":
        return "fewer batches or heads of keys and values, without enable_gqa"
    return {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient, "math": _math}[backend](
        given
    )


def _cudnn(given: Inputs) -> str | None:
    sizes = (given.head_dim, _value_dim(given))
    widest = 256 if given.compute_capability == HOPPER else 128
    if given.dtype not in _SIXTEEN_BIT:
        return f"{given.dtype}, not a type of 16 bits"
    if odd := next((each for each in sizes if each % 8), None):
        return f"head_dim {odd}, not a multiple of 8"
    if given.n_keys == 1:
        return "one key"
    if sizes == _LATENT and given.compute_capability[0] in (9, 10):
        return None
    return f"head_dim {max(sizes)}, above {widest}" if max(sizes) > widest else None


def _flash(given: Inputs) -> str | None:
    small = (8, 6) <= given.compute_capability <= (8, 9) or given.compute_capability[0] == 12
    if given.dtype not in _SIXTEEN_BIT:
        return f"{given.dtype}, not a type of 16 bits"
    if given.masked:
        return "a window or ALiBi's bias, not a causal mask"
    if _value_dim(given) != given.head_dim:
        return f"values of head_dim {given.value_dim} beside keys of {given.head_dim}"
    if given.differentiated and small and 192 < given.head_dim <= 224:
        return f"head_dim {given.head_dim} to train with, of 193 to 224, on this GPU"
    return f"head_dim {given.head_dim}, above 256" if given.head_dim > 256 else None


def _efficient(given: Inputs) -> str | None:
    multiple = 4 if given.dtype == _FLOAT else 8
    if given.dtype not in (_FLOAT, *_SIXTEEN_BIT):
        return f"{given.dtype}, a type that it has no kernel for"
    if given.grouped:
        return "heads that share keys and values"
    if given.head_dim % multiple:
        return f"head_dim {given.head_dim}, not a multiple of {multiple} in {given.dtype}"
    return None


def _value_dim(given: Inputs) -> int:
    return given.head_dim if given.value_dim is None else given.value_dim


def _math(_given: Inputs) -> None:
    return None
