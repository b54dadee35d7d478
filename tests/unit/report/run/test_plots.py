import msgspec
import pytest

from peakward.report.plot_parts import marks, measured, places, roofs
from peakward.report.run import plots
from peakward.report.run.investigation import read

replace = msgspec.structs.replace


def bars(study):
    return measured(plots.step_times(read(study)))[0].points


def test_a_bar_for_each_step_of_the_composition(run_study):
    points = bars(run_study)
    assert [point.label for point in points] == [
        "baseline",
        "step 1: bf16",
        "step 2: compile",
        "step 3: sdpa",
        "best",
    ]
    assert points[1].y == pytest.approx(1.006 * 0.1712)
    assert points[1].low == pytest.approx(1.006 * 0.1704)
    assert points[-1].y == 0.0975
    assert [point.x for point in points] == list(range(5))


def test_the_last_step_stands_in_for_a_best_that_was_not_measured(run_study):
    cut = replace(run_study, measurements=run_study.measurements[:1])
    assert bars(cut)[-1].label == "step 4: fused-optimizer"


def test_floors_are_marked_on_baseline_and_best(run_study):
    (floor,) = marks(plots.step_times(read(run_study)))
    assert [(point.label, point.x) for point in floor.points] == [("baseline", 0), ("best", 4)]
    assert floor.points[0].y == run_study.predictions[0].floor_s


def test_no_bars_of_nothing(run_study):
    failed = replace(run_study.measurements[0], status="oom", summary=None)
    assert plots.step_times(read(replace(run_study, measurements=(failed,), trials=()))) is None


def test_the_roofline_has_a_roof_a_type_and_a_place_a_configuration(run_study):
    plot = plots.roofline(read(run_study))
    assert [roof.name for roof in roofs(plot)] == ["fp32 roof", "bf16 roof"]
    foot, ridge, end = roofs(plot)[1].points
    assert foot.y / foot.x == pytest.approx(4.264e12)
    assert ridge.y == end.y == 785e12
    assert ridge.x == pytest.approx(785e12 / 4.264e12)
    (baseline,), (best,) = (place.points for place in places(plot))
    assert baseline.y == pytest.approx(3 * 1.39e13 / 1.004)
    assert best.x == pytest.approx(3 * 1.39e13 / (10 * 3.407e9 * 2))
    assert foot.x < baseline.x < best.x < end.x


def test_no_roofline_without_a_rate_or_a_time(run_study):
    unknown = tuple(replace(each, matmul_flops_per_s=None) for each in run_study.predictions)
    assert plots.roofline(read(replace(run_study, predictions=unknown))) is None
    assert plots.roofline(read(replace(run_study, predictions=()))) is None
