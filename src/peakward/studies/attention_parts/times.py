"""The time of attention's parts, read off a profile."""

from typing import Literal

import msgspec

from peakward.records.profile import CaseProfile
from peakward.traces.category_rules import Category

Direction = Literal["forward", "backward"]
ATTENTION = "peakward::attention"
NS = 1e-9


class PartTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that attention and its parts took in one step, in one direction."""

    scores_s: float
    """The product of queries and keys."""
    mask_s: float
    """Scaling and masking: what else the scores took."""
    softmax_s: float
    """Without the casts around it."""
    casts_s: float
    """Of scores and weights between the case's type and the softmax's fp32; none in fp32."""
    values_s: float
    """The product of weights and values."""
    whole_s: float
    """All of attention: the parts, and what is in none of them."""
    rest_s: float
    """In none of the parts."""

    @property
    def softmax_share(self) -> float:
        """Of the whole attention."""
        return self.softmax_s / self.whole_s

    @property
    def over_products(self) -> float | None:
        """The softmax's time over that of both products."""
        products_s = self.scores_s + self.values_s
        return self.softmax_s / products_s if products_s else None


def part_times(profile: CaseProfile, direction: Direction) -> PartTimes | None:
    """None where the profile has no attention in that direction."""
    ranges = [each for each in profile.profile.ranges if each.direction == direction]

    def total_ns(part: str, *, only: Category | None = None, but: Category | None = None) -> int:
        return sum(
            each.total_ns
            for each in ranges
            if each.name == f"{ATTENTION}{part}"
            and (only is None or each.category == only.value)
            and (but is None or each.category != but.value)
        )

    whole_ns = total_ns("")
    if not whole_ns:
        return None
    # What else the scores' range has is their scale and mask. The other two have, beside a softmax and a
    # product, copies: in bf16 of an H200, 148 + 72 µs around a softmax of 112.
    parts_ns = (
        total_ns(".scores", only=Category.MATMUL),
        total_ns(".scores", but=Category.MATMUL),
        total_ns(".softmax", but=Category.COPY),
        total_ns(".softmax", only=Category.COPY) + total_ns(".values", only=Category.COPY),
        total_ns(".values", only=Category.MATMUL),
    )
    # As whole nanoseconds: no rest is then none, where seconds left 1e-21 of them.
    rest_ns = whole_ns - sum(parts_ns)
    scores_s, mask_s, softmax_s, casts_s, values_s, whole_s, rest_s = (
        ns * NS / profile.n_steps for ns in (*parts_ns, whole_ns, rest_ns)
    )
    return PartTimes(
        scores_s=scores_s,
        mask_s=mask_s,
        softmax_s=softmax_s,
        casts_s=casts_s,
        values_s=values_s,
        whole_s=whole_s,
        rest_s=rest_s,
    )
