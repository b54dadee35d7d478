"""A device as a plan sees it."""

import msgspec
import pytest

from peakward.hardware.devices import device, least_memory_bytes
from peakward.prediction.planning.site import Attempts, cost, energy, gpu_hours, over, site, times
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Interval
from peakward.records.plan import Absent


def test_what_it_offers_unless_the_case_takes_less():
    on = site(device("h100-sxm-80"))
    assert on.limit_bytes(None) == least_memory_bytes(on.device)
    assert on.limit_bytes(2**30) == 2**30
    assert on.limit_bytes(2**50) == least_memory_bytes(on.device)


def test_without_a_model_of_its_times_it_says_why():
    on = site(device("mi300x-192"))
    assert on.model is None
    assert "MI300X" in on.why_no_model
    assert site(device("l4-24")).why_no_model == ""


# Figures, or why there are none.


def refused():
    raise PeakwardError("expected a GPU, got none")


def test_a_refusal_is_kept_and_the_figure_is_none():
    attempts = Attempts()
    assert attempts.of("size", lambda: 3) == 3
    assert attempts.of("time", refused) is None
    attempts.without("energy", "nobody states it")
    assert attempts.absent == (
        Absent(figure="time", reason="expected a GPU, got none"),
        Absent(figure="energy", reason="nobody states it"),
    )


def test_what_is_no_refusal_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        Attempts().of("share", lambda: 1 / 0)


# What follows from a step's time, by hand.

STEP = Interval(estimate=2.0, low=1.0, high=4.0, level=0.9)
H100 = device("h100-sxm-80")


def test_a_rate_is_high_where_the_time_is_short():
    assert over(STEP, 8.0) == Interval(estimate=4.0, low=2.0, high=8.0, level=0.9)
    assert over(None, 8.0) is None


def test_an_amount_is_high_where_the_time_is_long():
    assert times(STEP, 3.0) == Interval(estimate=6.0, low=3.0, high=12.0, level=0.9)
    assert times(None, 3.0) is None


def test_a_thousand_tokens_a_second_are_a_million_in_a_thousand_seconds():
    assert 2.0 * gpu_hours(2000) == pytest.approx(1000 / 3600)


def test_money_is_hours_times_their_price():
    paid = site(H100, price_per_gpu_hour=3.6)
    assert cost(2000, STEP, paid).estimate == pytest.approx(1.0)
    assert cost(2000, STEP, site(H100)) is None


def test_energy_is_the_board_s_limit_all_the_time_or_absent():
    attempts = Attempts()
    assert energy(100, STEP, site(H100), attempts).high == pytest.approx(700 * 4 / 100)
    assert attempts.absent == ()
    unknown = msgspec.structs.replace(H100, power_w=None)
    assert energy(100, STEP, site(unknown), attempts) is None
    assert "no power limit" in attempts.absent[0].reason
