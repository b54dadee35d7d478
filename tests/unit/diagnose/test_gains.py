"""What levers are predicted to give."""

import pytest

from peakward.diagnose.gains import capped, fastest_first, gains, smallest_first
from peakward.hardware.devices import device
from peakward.prediction.planning.site import site
from peakward.records.finding import LeverGain
from peakward.records.measurement import Interval

from .rules.made import case, foretold, given, kernel, of_host, profile

GUESS = Interval(estimate=2.0, low=1.5, high=3.0, level=0.9)


@pytest.mark.parametrize(
    ("bound", "ends"), [(None, (1.5, 2, 3)), (2.5, (1.5, 2, 2.5)), (1.2, (1.2, 1.2, 1.2))]
)
def test_no_end_lies_above_the_bound(bound, ends):
    found = capped(GUESS, bound)
    assert (found.low, found.estimate, found.high) == ends
    assert found.level == 0.9


def test_nothing_stays_nothing():
    assert capped(None, 2.0) is None


def test_levers_that_do_not_apply_are_left_out():
    names = ("bf16-mixed", "flash-decode", "sdpa-cudnn", "sdpa")
    found = gains(names, foretold(case(attention="sdpa")), None)
    assert [each.lever for each in found] == ["bf16-mixed"]


A100, V100 = (site(device(key)) for key in ("a100-sxm-80", "v100-sxm2-32"))
TRAINING = profile(kernel("a", 10), kernel("b", 20, phase="backward"))


@pytest.mark.parametrize(
    ("found", "on", "left"),
    [
        (profile(), None, ("compile",)),
        (profile(), site(device("mi300x-192")), ("bf16", "compile")),
        (profile(), site(device("b200-180")), ("fp8", "flash-decode", "bf16", "compile")),
        (profile(), A100, ("flash-decode", "bf16", "compile")),
        (profile(), V100, ("compile",)),
        (TRAINING, A100, ("bf16", "compile")),
        (of_host(), None, ("bf16", "compile")),
    ],
)
def test_a_trace_rules_out_what_its_device_and_its_pass_cannot(found, on, left):
    names = ("fp8", "flash-hopper", "flash-decode", "bf16", "compile")
    assert tuple(each.lever for each in gains(names, given(found, site=on), None)) == left


def test_each_is_the_forecast_with_it_over_that_without():
    (found,) = gains(("bf16",), foretold(case(workload={"batch_size": 32})), None)
    assert found.predicted.low < found.predicted.estimate < found.predicted.high
    assert found.predicted.estimate > 1.5
    assert found.saved_bytes > 0


def test_on_an_unknown_device_none_is_computed():
    (found,) = gains(("bf16",), given(case=case(), site=None), None)
    assert found.predicted is None
    assert found.source.startswith("not computed: the device")


def gain(lever, estimate=None, saved=None):
    guess = None
    if estimate is not None:
        guess = Interval(estimate=estimate, low=estimate, high=estimate)
    return LeverGain(lever=lever, predicted=guess, gain=guess, saved_bytes=saved, source="")


def test_of_time_the_fastest_first_and_none_that_is_slower():
    found = fastest_first((gain("a", 1.1), gain("b", 0.9), gain("c"), gain("d", 2.0)))
    assert [each.lever for each in found] == ["d", "a", "c"]


def test_of_memory_what_saves_most_first_and_none_that_saves_nothing():
    found = smallest_first((gain("a", saved=1), gain("b", saved=-1), gain("c", saved=9)))
    assert [each.lever for each in found] == ["c", "a"]
