"""The time of attention's parts, read off a profile."""

from typing import Literal

import msgspec

from peakward.records.profile import CaseProfile, RangeWork
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
    """With its casts."""
    values_s: float
    """The product of weights and values."""
    whole_s: float
    """All of attention: the parts, and what is in none of them."""

    @property
    def rest_s(self) -> float:
        """In none of the four parts, such as a cast of the weights."""
        return self.whole_s - self.scores_s - self.mask_s - self.softmax_s - self.values_s

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

    def seconds(name: str, *, product: bool | None = None) -> float:
        total_ns = sum(
            each.total_ns
            for each in ranges
            if each.name == name and product in (None, _is_product(each))
        )
        return total_ns * NS / profile.n_steps

    whole_s = seconds(ATTENTION)
    if not whole_s:
        return None
    return PartTimes(
        scores_s=seconds(f"{ATTENTION}.scores", product=True),
        mask_s=seconds(f"{ATTENTION}.scores", product=False),
        softmax_s=seconds(f"{ATTENTION}.softmax"),
        values_s=seconds(f"{ATTENTION}.values", product=True),
        whole_s=whole_s,
    )


def _is_product(one: RangeWork) -> bool:
    return one.category == Category.MATMUL.value
