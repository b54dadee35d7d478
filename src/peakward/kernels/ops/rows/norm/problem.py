"""The input of the kernels of a norm's backward pass."""

from typing import NamedTuple

import torch
from torch import Tensor

from peakward.kernels.ops.rows.layout import alignment, as_rows, of_whole_vectors, power_of_two


class Partials(NamedTuple):
    """Sums over some rows each, (n, width) of fp32, for the gradients of weight and bias."""

    weight: Tensor | None
    bias: Tensor | None


class Problem(NamedTuple):
    """Rows and what is to be known of their gradients; all of (rows, width) but as said."""

    g: Tensor
    s_gradient: Tensor | None
    """Added to x's gradient."""
    x: Tensor
    """The tensor that was normalised."""
    weight: Tensor | None
    """(width,), as is bias, of which only whether it is there counts."""
    bias: Tensor | None
    mean: Tensor | None
    """(rows,), as is r; None of RMSNorm."""
    r: Tensor
    out: Tensor
    """x's gradient, to be written."""

    @property
    def rows(self) -> tuple[Tensor, ...]:
        return tuple(each for each in (self.g, self.s_gradient, self.x) if each is not None)

    @property
    def itemsize(self) -> int:
        return max(each.element_size() for each in self.rows)

    @property
    def align(self) -> int:
        return alignment(self.x.shape[1], *(each.stride(0) for each in self.rows))

    @property
    def whole_vectors(self) -> bool:
        return of_whole_vectors(self.align, *self.rows, self.out)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        return (self.g, self.s_gradient, self.x, self.weight, self.mean, self.r, self.out)

    @property
    def extents(self) -> tuple[int, ...]:
        """The width and the rows' strides in units of `align`, and that."""
        added = self.g if self.s_gradient is None else self.s_gradient
        each = (self.x.shape[1], self.g.stride(0), added.stride(0), self.x.stride(0))
        align = self.align
        return (*(extent // align for extent in each), align)

    def kind(self) -> str:
        """The properties that decide the fastest settings: rows in powers of two."""
        n_rows, width = self.x.shape
        parts = {"mean": self.mean, "weight": self.weight, "bias": self.bias}
        names = [name for name, each in parts.items() if each is not None]
        return (
            f"{', '.join(str(each.dtype) for each in self.rows)}, {width} columns, up to "
            f"{power_of_two(n_rows)} rows, {'whole' if self.whole_vectors else 'broken'} vectors, "
            f"with {', '.join(names) or 'nothing'}"
        )

    def anew(self) -> "Problem":
        """Into another output."""
        return self._replace(out=torch.empty_like(self.out))

    def partials(self, n: int) -> Partials:
        """Room for n of them."""
        width = self.x.shape[1]
        return Partials(
            *(
                None if each is None else self.r.new_empty(n, width)
                for each in (self.weight, self.bias)
            )
        )


def problem_of(
    gradient: Tensor,
    s_gradient: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    r: Tensor,
) -> Problem:
    """The problem of tensors whose last dimension is the width."""
    return Problem(
        g=as_rows(gradient),
        s_gradient=None if s_gradient is None else as_rows(s_gradient),
        x=as_rows(x),
        weight=weight,
        bias=bias,
        mean=mean,
        r=r,
        out=torch.empty(x.shape, dtype=x.dtype, device=x.device),
    )
