"""Rows as kernels may be handed them, and settings that they may be started with."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from peakward.kernels.ops.rows.layout import RowSettings
from peakward.kernels.ops.rows.norm.settings import SpreadSettings

SHAPES = st.sampled_from([(300, 1), (20, 17), (3, 127), (2, 3, 40), (17, 8), (1, 1000), (0, 8)])
"""Of a hundred elements and more: the error of a few is luck."""
LAYOUTS = st.sampled_from(["contiguous", "padded", "transposed", "offset"])
WHOLE = (
    RowSettings(rows=1, columns=128, warps=4),
    RowSettings(rows=4, columns=128, warps=4, programs=2, stages=2),
)
IN_TWO = RowSettings(rows=1, columns=64, warps=1, more=64)
IN_PIECES = (
    RowSettings(rows=1, columns=32, warps=4),
    RowSettings(rows=1, columns=64, warps=4, programs=2, stages=2),
)
"""Of rows of 65 to 128 columns."""
SPREAD = (
    SpreadSettings(columns=256, warps=1, programs=2, slots=3),
    SpreadSettings(columns=1024, warps=4, programs=3, slots=4),
    SpreadSettings(columns=1024, warps=2, programs=1, slots=2),
    SpreadSettings(columns=256, warps=1, programs=32, slots=5),
)
"""Of rows of 1,000 columns and more, whole vectors of them."""


def spreads(device: torch.device) -> None:
    """Skips where rows cannot be spread over programs: no interpreter runs Gluon."""
    if device.type != "cuda":
        pytest.skip("written in Gluon, which is compiled only")


def drawn(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> Tensor:
    """Random normal numbers of a shape, their strides other than a contiguous tensor's."""
    *outer, width = shape
    if layout == "padded":
        return torch.randn(*outer, width + 3).to(dtype)[..., :width]
    if layout == "transposed":
        return torch.randn(*outer[:-1], width, outer[-1]).to(dtype).mT
    if layout == "offset":
        flat = torch.randn(torch.Size(shape).numel() + 1).to(dtype)
        return flat[1:].view(shape)
    return torch.randn(shape).to(dtype)


@contextmanager
def poisoned() -> Iterator[None]:
    """What torch allocates without writing to it is NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def assert_sum_as_close_as(theirs: Tensor, mine: Tensor, exact: Tensor, terms: Tensor) -> None:
    """As `oracle.assert_as_close_as` where terms of either sign add up to the exact values.

    `terms` is the sum of their magnitudes: half an epsilon of it is what rounding each of them once
    may cost, which torch's own result may have been spared by luck.
    """
    assert mine.dtype == theirs.dtype
    assert mine.shape == theirs.shape == exact.shape
    roundoff = torch.finfo(theirs.dtype).eps / 2 * float(terms.double().norm())
    mine_off, theirs_off = (float((each.double() - exact).norm()) for each in (mine, theirs))
    assert mine_off <= 2 * max(theirs_off, roundoff)
