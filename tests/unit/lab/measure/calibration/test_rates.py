"""A subject as a whole: what fails costs itself alone."""

import pytest

from peakward.lab.measure.calibration import rates
from peakward.lab.measure.calibration.rates import ATTEMPTS
from peakward.lab.measure.calibration.timing import Attempt, NotMeasurableError, outcome
from peakward.records.calibration import SUBJECTS, Absence, LaunchCost, Rates

COST = LaunchCost(side="host", operation="matmul", call_s=1e-6)


def fails():
    raise RuntimeError("no kernel")


@pytest.fixture
def attempted(monkeypatch):
    """attempted(attempts, then): makes these the launches' attempts, and raises `then`."""

    def set_up(*attempts, then=None):
        def generate(device_type):
            yield from attempts
            if then is not None:
                raise then

        monkeypatch.setitem(ATTEMPTS, "launches", generate)

    return set_up


def test_every_subject_is_attempted():
    assert set(ATTEMPTS) == set(SUBJECTS)


def test_a_failing_figure_is_absent_and_the_others_stay(attempted):
    attempted(Attempt("a", lambda: COST), Attempt("b", fails), Attempt("c", lambda: COST))
    found = rates.rates("launches", "cpu")
    assert found == Rates(
        launches=(COST, COST),
        absent=(Absence(subject="launches", figure="b", reason="RuntimeError: no kernel"),),
    )


def test_a_subject_that_cannot_go_on_keeps_what_it_has(attempted):
    attempted(Attempt("a", lambda: COST), then=OSError(28, "No space left on device"))
    found = rates.rates("launches", "cpu")
    assert found.launches == (COST,)
    (absent,) = found.absent
    assert absent.figure is None
    assert "No space left on device" in absent.reason


def test_a_subject_that_is_not_of_this_device_says_why(attempted):
    attempted(then=NotMeasurableError("a CPU has none"))
    assert rates.rates("launches", "cpu") == Rates(
        absent=(Absence(subject="launches", reason="a CPU has none"),)
    )


@pytest.mark.parametrize(
    ("subject", "device_type", "doubts"),
    [
        ("launches", "cpu", ("launches: it was crowded",)),
        ("launches", "cuda", ("launches: it was crowded",)),
        ("traffic", "cpu", ("traffic: it was crowded",)),
        ("traffic", "cuda", ()),
    ],
)
def test_a_crowded_host_is_a_doubt_where_it_is_timed(monkeypatch, subject, device_type, doubts):
    monkeypatch.setitem(ATTEMPTS, subject, lambda device_type: iter(()))
    monkeypatch.setattr(rates.Crowd, "doubt", lambda self: "it was crowded")
    assert rates.rates(subject, device_type).doubts == doubts


def test_a_cpu_s_launches_are_measured(monkeypatch):
    monkeypatch.setattr("peakward.lab.measure.calibration.timing.TIMED_S", {"cpu": 0.0})
    found = rates.rates("launches", "cpu")
    assert found.absent[0].figure == "kernel in a queue"
    assert len(found.launches) == 4
    assert found.backward_call_s > 0
    assert all(cost.call_s > 0 for cost in found.launches)


@pytest.fixture
def called(monkeypatch):
    """What each timed call gave."""
    results = []

    def keep(call, device_type):
        results.append(call())
        return 1e-6

    monkeypatch.setattr(rates, "host_s", keep)
    monkeypatch.setattr(rates, "backward_host_s", keep)
    monkeypatch.setattr(rates, "device_s", keep)
    return results


def test_a_cpu_has_the_host_s_costs_alone(called):
    absent, *costs = [outcome(each, "launches") for each in rates.attempts("cpu")]
    assert isinstance(absent, Absence)
    assert "no queue" in absent.reason
    assert costs == [
        LaunchCost(side="host", operation=operation, call_s=1e-6)
        for operation in ("elementwise", "matmul", "autograd", "autograd in a backward pass")
    ]


def test_autograd_records_and_the_others_do_not(called):
    for each in rates.attempts("cpu"):
        outcome(each, "launches")
    assert [result.grad_fn is not None for result in called] == [False, False, True, True]
    assert {tuple(result.shape) for result in called} == {(16, 16)}


def test_a_kernel_s_cost_is_the_device_s(called):
    cost = rates._kernel(lambda: None, "cuda")
    assert cost == LaunchCost(side="device", operation="elementwise", call_s=1e-6)
