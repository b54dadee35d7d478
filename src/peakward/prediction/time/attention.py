"""The time of fused attention: its model FLOPs at a rate that grows with the length.

A fused kernel's short rows end before its pipeline is full: seconds per FLOP are taken to be
a + b / seq_len, and both come from two measured lengths. On an H200 in bf16, of six kernels in
traces (lengths 512 and 1024, head_dim 64 and 80) the backward pass errs by 1% to 12% and the
forward pass by 8% to 13%.
"""

from collections.abc import Iterable
from typing import NamedTuple

from peakward.records.calibration import AttentionPass, AttentionRate


class AttentionModel(NamedTuple):
    """One compute type and one pass on one device."""

    flop_s: float
    """Seconds of a model FLOP of endless rows."""
    row_flop_s: float
    """Added to it, times the length."""

    def time_s(self, flops: float, seq_len: int) -> float:
        """Seconds of one call, from one launch to the next. `flops` as `records.rates.AttentionRate`."""
        return flops * (self.flop_s + self.row_flop_s / seq_len)


def fitted(
    rates: Iterable[AttentionRate], compute_type: str, pass_: AttentionPass
) -> AttentionModel | None:
    """Through the shortest and the longest measured length; None where there is only one."""
    found = sorted(
        (each.seq_len, 1 / each.flops_per_s)
        for each in rates
        if (each.compute_type, each.pass_) == (compute_type, pass_)
    )
    if len(found) < 2 or found[0][0] == found[-1][0]:
        return None
    (short, short_s), (long, long_s) = found[0], found[-1]
    row_flop_s = max(0.0, (short_s - long_s) / (1 / short - 1 / long))
    return AttentionModel(max(0.0, long_s - row_flop_s / long), row_flop_s)
