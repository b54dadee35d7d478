"""Predictions of what was measured may become better, never worse.

Where one of these fails for a good reason, store the accuracy anew and say why in the commit:
`python benchmarks/prediction_accuracy.py --device KEY --out results/DATE-NAME-accuracy.json`.
"""

import msgspec
import pytest

from accuracy.gate import SLACK, lost, not_stored, regressions
from accuracy.groups import SOURCES, groups
from peakward.prediction.time.step import step_time

from .conftest import SITES

EACH = 10
"""Of so many stored cases one is predicted again in the fast tier."""


def test_some_stored_cases_are_predicted_no_worse(every_stored):
    worse = {}
    for device, found in every_stored.items():
        for each in found.cases[::EACH]:
            again_s = step_time(each.case, SITES[device].calibrated).step_s.estimate
            error = again_s / each.measured_s - 1
            if abs(error) > abs(each.error("calibrated")) + SLACK:
                worse[device, each.label] = (each.error("calibrated"), error)
    assert not worse


@pytest.mark.full
def test_no_kind_of_case_is_predicted_worse_than_stored(stored_there, now_there):
    found = regressions(stored_there, now_there)
    assert not found, "\n".join(["", *found])


@pytest.mark.full
def test_every_case_that_was_predicted_still_is(stored_there, now_there):
    found = lost(stored_there, now_there)
    assert not found, "\n".join(["", *found])


@pytest.mark.full
def test_the_accuracy_of_every_predicted_case_is_stored(stored_there, now_there):
    found = not_stored(stored_there, now_there)
    assert not found, "\n".join(["", *found])


@pytest.mark.full
@pytest.mark.parametrize("source", SOURCES)
def test_nine_in_ten_measured_steps_lie_in_their_interval(now_there, source):
    """What a 90% interval says; of each bound alone the stored shares hold, which the gate keeps."""
    assert sum(each.held(source) for each in now_there) / len(now_there) >= 0.9


def test_the_stored_figures_are_of_the_stored_cases(stored_there):
    assert list(stored_there.groups) == groups(stored_there.cases)


def scaled(case, factor):
    """The case with its calibrated prediction so many times as long."""
    was = case.calibrated.step_s
    step_s = msgspec.structs.replace(
        was, estimate=factor * was.estimate, low=factor * was.low, high=factor * was.high
    )
    predicted = msgspec.structs.replace(case.calibrated, step_s=step_s)
    return msgspec.structs.replace(case, calibrated=predicted)


def test_a_planted_fault_is_told_with_the_kind_and_the_case_that_moved_most(stored):
    """Every Llama step told 5% farther from what it took, the last 8%."""
    llamas = [each.key for each in stored.cases if each.case.model.name.startswith("llama")]
    farther = {key: 1.08 if key == llamas[-1] else 1.05 for key in llamas}

    def worse(each):
        factor = farther.get(each.key, 1.0)
        return scaled(each, factor if each.error("calibrated") > 0 else 1 / factor)

    now = [worse(each) for each in stored.cases]
    found = regressions(stored, now)
    last = next(each for each in stored.cases if each.key == llamas[-1])
    told = [each for each in found if each.startswith("calibrated, family Llama: median error")]
    assert len(told) == 1
    assert f"most moved {last.label}, from " in told[0]
    assert not any(each.startswith("datasheet") for each in found)
    assert not any("Qwen" in each or "model small" in each for each in found)


def test_a_case_that_leaves_its_interval_is_told(stored):
    held = next(each for each in stored.cases if each.held("calibrated"))
    now = [scaled(each, 3.0) if each.key == held.key else each for each in stored.cases]
    kind = f"calibrated, model {held.case.model.name}: share outside the interval"
    told = [each for each in regressions(stored, now) if each.startswith(kind)]
    assert len(told) == 1
    assert f"most moved {held.label}, from " in told[0]


def test_what_is_within_the_slack_is_not_told(stored):
    now = [scaled(each, 1 + SLACK / 3) for each in stored.cases]
    assert not any("error" in each.partition(";")[0] for each in regressions(stored, now))


def test_a_better_prediction_is_not_told(stored):
    exact = [
        scaled(each, each.measured_s / each.calibrated.step_s.estimate) for each in stored.cases
    ]
    assert regressions(stored, exact) == []


def test_a_case_that_is_gone_or_new_is_told(stored):
    first, *others = stored.cases
    assert lost(stored, others) == [first.label]
    assert not_stored(msgspec.structs.replace(stored, cases=tuple(others)), stored.cases) == [
        first.label
    ]
