"""Refuses by name the inputs that these kernels do not support; the caller chooses another
implementation."""

import torch
from torch import Tensor

from peakward.kernels.ops.flash_attention.rule import Packing, Rule
from peakward.kernels.ops.launchable import interprets

HEAD_DIMS = (64, 80, 96, 128)
DTYPES = (torch.float16, torch.bfloat16)


def require(q: Tensor, slopes: Tensor | None, rule: Rule, packing: Packing | None) -> None:
    """
    Raises:
        ValueError: a type, head dimension or option without a kernel here, or another GPU.
    """
    expected: str | None = None
    if q.dtype not in DTYPES:
        expected, got = "float16 or bfloat16", str(q.dtype)
    elif q.shape[-1] not in HEAD_DIMS:
        expected, got = f"head_dim of {HEAD_DIMS}", str(q.shape[-1])
    elif slopes is not None:
        expected, got = "no ALiBi slopes", "some"
    elif rule.window is not None:
        expected, got = "no window", str(rule.window)
    elif packing is not None:
        expected, got = "sequences of one length", "packed ones"
    elif interprets():
        expected, got = "a GPU", "Triton's interpreter"
    elif q.is_cuda and torch.cuda.get_device_capability(q.device)[0] != 9:
        expected, got = "a GPU of compute capability 9", torch.cuda.get_device_name(q.device)
    if expected is not None:
        raise ValueError(
            f"flash_attention: expected {expected} for the implementation 'hopper', got {got}; "
            "take 'triton'"
        )


def require_unordered() -> None:
    """
    Raises:
        ValueError: a backward pass that must add in a fixed order.
    """
    if torch.are_deterministic_algorithms_enabled():
        raise ValueError(
            "flash_attention: expected torch.use_deterministic_algorithms(False) for the backward "
            "pass of the implementation 'hopper', which adds dq in no fixed order; take 'triton'"
        )
