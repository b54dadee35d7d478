"""torch's global settings: kept while something runs that may change them, or deterministic for as long as a
computation must give the same bits again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from peakward.records.errors import PeakwardError


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Inside, torch takes deterministic algorithms where `wanted`, and warns of operators that have none;
    otherwise what was set before stands."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if wanted:
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def matmul_precision() -> str:
    """The precision of fp32 matmuls: highest, high or medium.

    Raises:
        PeakwardError: It was set by `fp32_precision`; torch then cannot tell what a lever changes.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError as error:
        raise PeakwardError(
            "expected the precision of fp32 matmuls set by torch.set_float32_matmul_precision, got it set by "
            "torch.backends…fp32_precision: use the former, for torch mixes the two up"
        ) from error


_CUDA, _CUDNN = torch.backends.cuda, torch.backends.cudnn
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp),
    (_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp),
    (_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp),
    (_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp),
    (lambda: _CUDNN.benchmark, lambda value: setattr(_CUDNN, "benchmark", value)),
    (lambda: _CUDNN.deterministic, lambda value: setattr(_CUDNN, "deterministic", value)),
)


@contextmanager
def kept_settings() -> Iterator[None]:
    """Restores, on leaving, the settings of gradients, the default type, the precision of fp32 matmuls,
    determinism and the backends of attention.

    Raises:
        PeakwardError: as `matmul_precision`.
    """
    before = [(put, get()) for get, put in _SETTINGS]
    try:
        yield
    finally:
        for put, value in before:
            put(value)
