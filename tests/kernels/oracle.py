"""Kernels held against the same in fp64."""

from collections.abc import Iterable

import torch
from torch import Tensor


def error(got: Tensor, exact: Tensor) -> float:
    """‖got - exact‖ / ‖exact‖ in fp64; of an exact zero, ‖got‖."""
    exact = exact.double()
    scale = float(exact.norm())
    return float((got.double().to(exact.device) - exact).norm()) / (scale or 1.0)


def assert_as_close_as(
    theirs: Tensor, mine: Tensor, exact: Tensor, others: Iterable[tuple[Tensor, Tensor]] = ()
) -> None:
    """`mine` is within twice the error of torch's own kernel in the same type.

    Or, where torch's is smaller by luck, within twice what rounding the exact values once to that
    type may cost: half an epsilon, relative to each.

    Args:
        others: torch's and the exact values of other draws of the kind. Of a single row, whose
            statistics err for all of it alike, one draw of torch's error is luck.
    """
    assert mine.dtype == theirs.dtype
    assert mine.shape == theirs.shape == exact.shape
    roundoff = torch.finfo(theirs.dtype).eps / 2
    my_error = error(mine, exact)
    their_error = max(error(theirs, exact), *(error(*each) for each in others), 0.0)
    assert my_error <= 2 * max(their_error, roundoff), f"{my_error:.3g}, torch's {their_error:.3g}"


def assert_same_specials(theirs: Tensor, mine: Tensor) -> None:
    """NaN and infinities stand where torch's do."""
    assert torch.equal(mine.isnan(), theirs.isnan())
    assert torch.equal(mine == torch.inf, theirs == torch.inf)
    assert torch.equal(mine == -torch.inf, theirs == -torch.inf)
