"""A matmul a group, as the definition has it: a plain loop, in any dtype on any device."""

from itertools import pairwise

import torch
from torch import Tensor


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="traced, it would be compiled anew for every set of group sizes"
)
def grouped_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows of x times the transposed matrix of their group.

    The host waits for `ends` to know how far each matmul reaches, so that no CUDA graph can
    capture this.

    Args:
        x: (n, in), n at least 1: rows of one group next to one another, groups in order.
        weight: (groups, out, in) in x's dtype.
        ends: (groups,) of int32: the row after each group's last; the last is n. A group may have
            no rows; its gradient is zeros.

    Returns:
        (n, out) in x's dtype.
    """
    spans = pairwise([0, *ends.tolist()])
    return torch.cat(
        [x[start:end] @ matrix.mT for (start, end), matrix in zip(spans, weight, strict=True)]
    )
