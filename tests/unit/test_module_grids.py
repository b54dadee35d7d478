"""The grids of models whose steps are told before they are measured (`benchmarks/module_prediction.py`)."""

from time import monotonic, sleep

import msgspec
import pytest

from peakward.records.calibration import LaunchCost, Rates
from stored_results import index


def test_the_blind_grid_has_no_architecture_of_the_one_that_was_seen():
    from module_grid import blind as of_now
    from module_grid import seven
    from module_prediction import Report

    blind = of_now.grid()
    assert len(blind) == 44
    before = {each.kind for each in seven.grid()}
    for stored in index().of("module-prediction"):
        report = msgspec.json.decode(stored.read(), type=Report)
        before |= {each.case.kind for each in report.outcomes}
    assert before.isdisjoint(of_now.CONFIGS)
    for kind in of_now.CONFIGS:
        eager = [each for each in blind if each.kind == kind and each.compiled == "none"]
        assert {each.precision for each in eager} == {"fp32", "bf16-mixed", "bf16"}
    assert {each.compiled for each in blind} == {"none", "blocks", "model"}
    assert {each.pass_ for each in blind} == {"forward", "train_step"}


def test_the_budget_ends_a_step_that_takes_long():
    from module_prediction import OutOfTime, until

    with pytest.raises(OutOfTime), until(monotonic() + 0.01):
        sleep(60)
    sleep(0.02)  # Behind the block nothing is raised.


def test_a_step_is_told_once_more_by_the_host_of_the_moment():
    pytest.importorskip("transformers")
    from module_grid.predicted import captured, told, told_of_the_moment
    from module_grid.seven import grid
    from module_prediction import Report

    stored = index()["2026-11-26-h200-module-prediction"].read()
    report = msgspec.json.decode(stored, type=Report)
    eager = (each for each in grid(tiny=True) if each.compiled == "none")
    case = next(each for each in eager if each.pass_ == "train_step")
    found = captured(case)
    (by_calibration,) = told(found, report.device, (report.calibration,))
    call_s = report.calibration.rates.recorded_call_s
    costs = {"autograd": 2 * call_s, "autograd in a backward pass": 3 * call_s}
    now = [
        LaunchCost(side="host", operation=operation, call_s=each)
        for operation, each in costs.items()
    ]
    by_one, by_both, by_none = (
        told_of_the_moment(found, report.device, report.calibration, Rates(launches=tuple(each)))
        for each in (now[:1], now, ())
    )
    (moment,) = by_one
    assert (by_calibration.source, moment.source) == ("calibrated", "moment")
    assert moment.device_s == by_calibration.device_s
    assert moment.host_s == pytest.approx(2 * by_calibration.host_s)
    assert by_both[0] == moment
    assert by_both[1].source == "by thread"
    assert 2 < by_both[1].host_s / by_calibration.host_s < 3
    assert by_none == []


def test_cases_of_stored_grids_are_measured_anew_in_their_order():
    from module_grid.seven import grid
    from module_prediction import of

    stored = index()["2026-11-26-h200-module-prediction"].path()
    names = {each.name for each in grid()}
    once, twice = of([stored]), of([stored] * 2)
    assert twice == once + once
    assert len(once) == 32
    assert {each.name for each in once} <= names
