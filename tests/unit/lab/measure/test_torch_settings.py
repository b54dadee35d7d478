"""torch's global settings, put back."""

import pytest
import torch

from peakward.lab.measure.torch_settings import kept_settings, matmul_precision
from peakward.records.errors import PeakwardError


def settings():
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cudnn.benchmark,
    )


def test_all_are_put_back_though_the_block_raises():
    before = settings()
    with pytest.raises(ValueError, match="then"), kept_settings():
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.enable_math_sdp(False)
        torch.backends.cudnn.benchmark = True
        assert all(mine != theirs for mine, theirs in zip(settings(), before, strict=True))
        raise ValueError("then")
    assert settings() == before


def test_a_precision_that_torch_cannot_tell_is_refused(monkeypatch):
    def mixed():
        raise RuntimeError("you have used mix of the legacy and new APIs")

    assert matmul_precision() == "highest"
    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    with pytest.raises(PeakwardError, match="got it set by torch"), kept_settings():
        raise AssertionError("not reached")
