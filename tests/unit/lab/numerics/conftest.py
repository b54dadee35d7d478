import pytest
import torch

from peakward.kernels.ops.fp8_linear import api, reference


@pytest.fixture
def wrong_by_windows(monkeypatch):
    """Casts whose scale is wrong where a window's is not the tensor's own."""
    delayed = api.fp8_delayed_both

    def doubled(x, history, dtype):
        *cast, scale = delayed(x, history, dtype)
        return *cast, torch.where(scale == reference.scale_of(x, dtype), scale, 4 * scale)

    monkeypatch.setattr(api, "fp8_delayed_both", doubled)
