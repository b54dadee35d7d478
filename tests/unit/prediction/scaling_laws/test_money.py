"""Device-hours and prices, by hand, and that the weighed plan is the cheapest."""

from math import inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.models.scaling_fits import scaling_fit
from peakward.prediction.scaling_laws.lifetime import lifetime_optimal
from peakward.prediction.scaling_laws.money import bill, lifetime_bill, relative_price
from peakward.records.errors import PeakwardError
from peakward.records.plan import Bill, Tariff

FIT = scaling_fit("besiroglu-2024")
TRAINING = Tariff(peak_flops_per_s=1e15, mfu=0.4, price_per_device_hour=2.0)
SERVING = Tariff(peak_flops_per_s=1e15, mfu=0.05, price_per_device_hour=1.5)

replace = msgspec.structs.replace


def test_a_bill_by_hand() -> None:
    # 1e15 · 0.4 · 3600 s are 1.44e18 FLOPs an hour.
    assert bill(1.44e21, TRAINING) == Bill(flops=1.44e21, device_hours=1000.0, price=2000.0)
    assert bill(0.0, TRAINING).price == 0.0
    free = replace(TRAINING, price_per_device_hour=0.0)
    assert (bill(1.44e21, free).device_hours, bill(1.44e21, free).price) == (1000.0, 0.0)


def test_a_life_is_paid_for_training_and_for_serving() -> None:
    plan = lifetime_optimal(2.0, 1e13, FIT)
    paid = lifetime_bill(plan, training=TRAINING, serving=SERVING)
    parts = bill(plan.training.training_flops, TRAINING), bill(plan.serving_flops, SERVING)
    assert paid.price == parts[0].price + parts[1].price
    assert paid.device_hours == parts[0].device_hours + parts[1].device_hours
    assert paid.flops == plan.lifetime_flops


def test_a_flop_at_an_eighth_of_the_mfu_costs_eight_times_as_much() -> None:
    same_price = replace(SERVING, price_per_device_hour=2.0)
    assert relative_price(training=TRAINING, serving=same_price) == pytest.approx(8)
    assert relative_price(training=TRAINING, serving=SERVING) == pytest.approx(6)


@given(st.floats(0.1, 10))
def test_the_plan_weighed_by_price_has_the_lowest_bill(weight: float) -> None:
    price = relative_price(training=TRAINING, serving=SERVING)

    def paid(relative: float) -> float:
        plan = lifetime_optimal(2.0, 1e13, FIT, relative_price=relative)
        return lifetime_bill(plan, training=TRAINING, serving=SERVING).price

    assert paid(price) <= paid(weight * price) * (1 + 1e-12)


def test_weighing_by_price_saves_money_over_weighing_by_flops() -> None:
    price = relative_price(training=TRAINING, serving=SERVING)
    by_price = lifetime_optimal(2.0, 1e13, FIT, relative_price=price)
    by_flops = lifetime_optimal(2.0, 1e13, FIT)
    bills = [
        lifetime_bill(plan, training=TRAINING, serving=SERVING) for plan in (by_price, by_flops)
    ]
    assert bills[0].price < 0.95 * bills[1].price
    assert by_price.lifetime_flops > by_flops.lifetime_flops


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mfu": 0.0}, "expected an mfu above 0 and of at most 1, got 0.0"),
        ({"mfu": 1.01}, "expected an mfu above 0 and of at most 1, got 1.01"),
        ({"mfu": nan}, "expected an mfu above 0 and of at most 1, got nan"),
        ({"price_per_device_hour": -0.1}, "expected price_per_device_hour of at least 0, got -0.1"),
        ({"price_per_device_hour": inf}, "expected price_per_device_hour of at least 0, got inf"),
        ({"peak_flops_per_s": 0.0}, "expected peak_flops_per_s above 0, got 0.0"),
    ],
)
def test_a_tariff_that_cannot_be_is_refused(change: dict[str, float], message: str) -> None:
    wrong = replace(TRAINING, **change)
    for refused in (
        lambda: bill(1.0, wrong),
        lambda: relative_price(training=wrong, serving=SERVING),
        lambda: relative_price(training=SERVING, serving=wrong),
    ):
        with pytest.raises(PeakwardError) as found:
            refused()
        assert message in str(found.value)


def test_what_is_free_has_no_relative_price_and_negative_work_no_bill() -> None:
    free = replace(TRAINING, price_per_device_hour=0.0)
    with pytest.raises(PeakwardError, match="expected price_per_device_hour of training above 0"):
        relative_price(training=free, serving=SERVING)
    with pytest.raises(PeakwardError, match=r"expected flops of at least 0, got -1\.0"):
        bill(-1.0, TRAINING)
    assert bill(1e20, replace(TRAINING, mfu=1.0)).price > 0
