"""What attention's parts have to do, in closed form from their shapes."""

import msgspec

from peakward.records.case import OperatorCase

SOFTMAX_FLOPS = 5
"""A number of a row: its maximum, subtract, exponential, sum, divide."""
ITEM_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2}


class PartWork(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs and bytes of one part in one step."""

    flops: int
    n_bytes: int
    """Inputs and outputs, each once."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Of the parts, forward."""

    scores: PartWork
    """The product alone, without scale and mask."""
    softmax: PartWork
    """Of fp32, whatever the case's type."""
    casts: PartWork | None
    """Of the scores to fp32, and of the weights back. None in fp32."""
    values: PartWork

    @property
    def over_products(self) -> float:
        """The softmax's FLOPs over those of both products."""
        return self.softmax.flops / (self.scores.flops + self.values.flops)


def work(case: OperatorCase) -> Work:
    """Of all heads and the whole batch; every score is computed, masked or not."""
    n_heads, item = case.batch_size * case.n_heads, ITEM_BYTES[case.precision]
    square, row = case.seq_len**2, case.seq_len * case.head_dim
    product = PartWork(
        flops=n_heads * 2 * square * case.head_dim,
        # Two of queries, keys, values and result; and the scores or weights.
        n_bytes=n_heads * (2 * row + square) * item,
    )
    wide = ITEM_BYTES["fp32"]
    softmax = PartWork(flops=n_heads * SOFTMAX_FLOPS * square, n_bytes=n_heads * 2 * square * wide)
    casts = PartWork(flops=0, n_bytes=n_heads * 2 * square * (item + wide))
    return Work(
        scores=product, softmax=softmax, casts=casts if item < wide else None, values=product
    )
