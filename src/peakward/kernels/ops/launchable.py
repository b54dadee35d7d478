"""Checks that tensors can be passed to a Triton kernel of this room."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

LEAST_CAPABILITY = (8, 0)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def require_one_device(op: str, *tensors: Tensor | None) -> torch.device:
    """The tensors' device. Asked when an operator's results are made up, too: where one of its tensors is
    on the meta device torch takes these for the operator's own, uninitialised memory of the others' device.

    Raises:
        ValueError: several.
    """
    devices = {each.device for each in tensors if each is not None}
    if len(devices) > 1:
        got = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"{op}: expected tensors on one device, got {got}")
    (device,) = devices
    return device


def require_launchable(op: str, *tensors: Tensor | None) -> None:
    """
    Raises:
        ValueError: tensors that are not all on one CUDA device of capability 8.0 or later. Under
            Triton's interpreter (TRITON_INTERPRET=1) the CPU will do.
        NotImplementedError: as `require_no_tangents`.
    """
    require_no_tangents(op)
    device = require_one_device(op, *tensors)
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < LEAST_CAPABILITY:
            raise ValueError(
                f"{op}: expected a GPU of compute capability 8.0 or later, got "
                f"{capability[0]}.{capability[1]} ({torch.cuda.get_device_name(device)})"
            )
    elif not (device.type == "cpu" and interprets()):
        raise ValueError(f"{op}: expected tensors on a CUDA device, got {device}")


def require_no_tangents(op: str) -> None:
    """
    Raises:
        NotImplementedError: within forward-mode differentiation, in which torch takes a result without a
            tangent for one that does not change.
    """
    if forward_ad._current_level >= 0:
        raise NotImplementedError(
            f"{op}: expected no forward-mode differentiation (torch.func.jvp, dual tensors), of which it "
            "has no formula, got a call within it; take torch's own operator"
        )


def require_floats(op: str, **tensors: Tensor) -> None:
    """
    Raises:
        ValueError: a tensor whose type is none of fp32, fp16 and bf16.
    """
    for name, each in tensors.items():
        if each.dtype not in FLOATS:
            raise ValueError(
                f"{op}: expected {name} in float32, float16 or bfloat16, got {each.dtype}"
            )


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The type that autocast casts to on such a device; None where it is off, as it always is on the
    meta device."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Inside, no autocast on such a device; the meta device knows none."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def require_loss_dtype(op: str, dtype: torch.dtype) -> None:
    """
    Raises:
        ValueError: none of fp32, fp16 and bf16.
    """
    if dtype not in FLOATS:
        raise ValueError(f"{op}: expected loss_dtype float32, float16 or bfloat16, got {dtype}")


def interprets() -> bool:
    """Whether Triton's interpreter takes the place of a GPU in this process; not without Triton."""
    try:
        from triton import knobs
    except ImportError:
        return False
    return bool(knobs.runtime.interpret)
