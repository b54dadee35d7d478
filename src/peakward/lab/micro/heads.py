"""Attention's heads, stored (batch, heads, length, width) or (batch, length, heads, width).

A projection gives the second layout. The first is then a permuted view of it, or a copy.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as fused

from peakward.lab.micro.piece import Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase

Work = Callable[..., Tensor]
Lay = Callable[[Tensor], Tensor]


def heads_first(stored: Tensor) -> Tensor:
    """Contiguous (batch, heads, length, width)."""
    return stored


def permuted(stored: Tensor) -> Tensor:
    """The same numbers and shape, stored (batch, length, heads, width)."""
    return stored.transpose(1, 2).contiguous().transpose(1, 2)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """The products of all queries and keys."""
    return q @ k.transpose(-2, -1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention by its definition, without a mask."""
    return (scores(q, k) / q.shape[-1] ** 0.5).softmax(-1) @ v


def on_copies(work: Work) -> Work:
    """The work on contiguous copies of its inputs."""
    return lambda *inputs: work(*(each.contiguous() for each in inputs))


PIECES: dict[str, tuple[Work, Work, Lay]] = {
    "scores of heads first": (scores, scores, heads_first),
    "scores of permuted heads": (scores, scores, permuted),
    "scores of permuted heads (copied)": (on_copies(scores), scores, permuted),
    "attention of heads first": (fused, attention, heads_first),
    "attention of permuted heads": (fused, attention, permuted),
    "attention of permuted heads (copied)": (on_copies(fused), attention, permuted),
}
"""The function to run (attention is torch's fused one), its exact form, and the layout of the inputs."""
N_INPUTS = {scores: 2, attention: 3}


def build(case: MicroCase) -> Piece:
    """Builds a case of sizes (batch, heads, length, width). A piece that copies does so in every step."""
    shape = sizes(case, "batch", "heads", "length", "width")
    work, exact, lay = chosen(case, PIECES)
    inputs = tuple(lay(each) for each in drawn(case, N_INPUTS[exact], *shape))
    batch, heads, length, width = shape
    product = 2 * batch * heads * length**2 * width
    return Piece(
        run=lambda: work(*inputs),
        inputs=inputs,
        flops=(N_INPUTS[exact] - 1) * product,
        oracle=lambda: exact(*(each.double() for each in inputs)),
    )
