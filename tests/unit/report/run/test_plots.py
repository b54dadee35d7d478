"""The plots of a run: step times by composition step, the roofline, and the Pareto front with its table."""

import msgspec
import pytest

from peakward.levers.catalogue import lever, pull
from peakward.models.presets import model
from peakward.records.case import ModelCase, Workload
from peakward.records.lever import NumericsVerdict, Pair, Trial
from peakward.records.measurement import Interval, LoaderWait
from peakward.report.plots import marks, measured, places, roofs
from peakward.report.run import plots
from peakward.report.run.investigation import read
from peakward.report.run.plots import pareto_front, pareto_section, seen

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


def test_a_step_that_a_loader_feeds_has_its_mean_as_above_the_plot(run_study):
    first = run_study.measurements[0]
    late = replace(first.runs[0], steps_s=(*first.runs[0].steps_s, 60.0))
    waits = LoaderWait(wait_s=(0.0,), first_wait_s=0.0)
    fed = replace(first, runs=(late, *first.runs[1:]), loader=waits)
    study = replace(run_study, measurements=(fed, *run_study.measurements[1:]))
    assert bars(study)[0].y == read(study).baseline.step_s > first.summary.median_s.estimate


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


BASE = ModelCase(model=model("tiny"), workload=Workload(batch_size=1, seq_len=8), device="cpu")


def trial(
    name, seconds, peak, *, base=BASE, base_s=1.0, width=0.001, stage="confirmed",
    numerics="reordered", **fields
):  # fmt: skip
    """`width` is half the interval's, of the ratio."""
    pair = Pair(process=0, base_s=base_s, candidate_s=seconds, **fields)
    ratio = seconds / base_s
    return Trial(
        id=name,
        lever=name,
        base=base,
        candidate=pull(lever(name), base),
        environment_key="here",
        stage=stage,
        verdict="inconclusive",
        reason="",
        pairs=(pair,),
        time_ratio=Interval(estimate=ratio, low=ratio - width, high=ratio + width),
        base_peak_bytes=100,
        candidate_peak_bytes=peak,
        numerics=numerics and NumericsVerdict(declared=numerics, verdict="holds"),
    )


def kept(*trials):
    return [(one.step_s, one.peak_bytes, one.numerics) for one in pareto_front(seen(trials, BASE))]


def test_what_is_slower_and_larger_is_not_shown():
    assert kept(trial("sdpa", 0.8, 90), trial("bf16", 0.9, 95)) == [
        (0.8, 90, "reordered"),
        (1.0, 100, "exact"),
    ]


def test_the_trial_between_two_says_more_than_their_ways_from_the_baseline():
    """Over the baseline the intervals overlap, and memory of other processes differs; side by side the lever
    was 0.815 times as fast in as much memory."""
    whole = trial("bf16", 0.05, 120, width=0.02)
    lost = trial(
        "sdpa", 0.0613, 100, base=whole.candidate, base_s=0.05, stage="screened", width=0.03
    )
    trials = (whole, lost)
    assert lost.candidate in [one.case for one in pareto_front(seen(trials, BASE))]
    front = [one.case for one in pareto_front(seen(trials, BASE), trials)]
    assert lost.candidate not in front
    assert whole.candidate in front


def test_slower_but_smaller_is():
    assert [one[:2] for one in kept(trial("sdpa", 0.8, 90), trial("checkpointing", 1.2, 50))] == [
        (0.8, 90),
        (1.0, 100),
        (1.2, 50),
    ]


def test_the_weakest_class_on_the_way_counts():
    first = trial("bf16", 0.5, 60, numerics="approximate")
    second = trial("sdpa", 0.4, 50, base=first.candidate, base_s=0.5)
    assert kept(first, second)[0] == (0.4, 50, "approximate")


def test_what_was_not_checked_counts_as_approximate_and_what_does_not_hold_is_out():
    assert kept(trial("sdpa", 0.5, 50, numerics=None))[0] == (0.5, 50, "approximate")
    wrong = trial("sdpa", 0.5, 50)
    wrong = type(wrong)(
        **{name: getattr(wrong, name) for name in wrong.__struct_fields__}
        | {"numerics": NumericsVerdict(declared="reordered", verdict="violated")}
    )
    assert kept(wrong) == []


def test_a_hair_faster_beats_nothing():
    assert len(kept(trial("sdpa", 0.995, 100, numerics="approximate"))) == 1


def test_energy_counts_where_both_have_it():
    frugal = trial("checkpointing", 1.2, 100, numerics="exact", base_j=10.0, candidate_j=5.0)
    assert len(kept(frugal)) == 2
    assert len(kept(trial("checkpointing", 1.2, 100, numerics="exact"))) == 1


def test_confirmed_times_take_the_place_of_screened_ones():
    assert kept(trial("sdpa", 0.7, 90), trial("sdpa", 0.5, 90, stage="screened"))[0][0] == 0.7


def test_an_interval_that_holds_1_is_no_ground_to_stand_above_the_baseline():
    """fused-loss, 1.02× (0.951–1.09×) when screened, saves memory: it stands beside the baseline."""
    unsure = trial("fused-loss", 0.98, 60, width=0.07, stage="screened")
    assert [one[:2] for one in kept(unsure)] == [(1.0, 100), (0.98, 60)]
    assert kept(trial("sdpa", 0.98, 100, width=0.07)) == [(1.0, 100, "exact")], "nor at all"


def test_overlapping_intervals_do_not_tell_two_configurations_apart():
    sure = trial("bf16", 0.80, 60, width=0.02)
    unsure = trial("tf32", 0.79, 90, width=0.05)
    assert [one[:2] for one in kept(sure, unsure)] == [(0.80, 60), (1.0, 100)]


def test_what_leads_to_a_configuration_widens_its_interval():
    first = trial("bf16", 0.98, 60, width=0.015)
    second = trial("sdpa", 0.98, 50, base=first.candidate, base_s=0.98, width=0.03)
    found = {one.case: one for one in seen((first, second), BASE)}
    assert found[first.candidate].ratio.high < 1 < found[second.candidate].ratio.high


def test_a_trial_against_the_baseline_itself_says_more_than_the_steps():
    first = trial("bf16", 0.5, 60, width=0.1)
    second = trial("sdpa", 0.4, 50, base=first.candidate, base_s=0.5, width=0.1)
    whole = msgspec.structs.replace(
        second,
        lever="composition",
        base=BASE,
        time_ratio=Interval(estimate=0.4, low=0.39, high=0.41),
    )
    for trials in ((first, second, whole), (whole, first, second)):
        found = {one.case: one for one in seen(trials, BASE)}
        assert found[second.candidate].ratio.high == 0.41


def test_what_was_screened_on_a_base_that_was_confirmed_later_is_known_by_what_led_there():
    """nanoGPT on an H200: CUDA graphs on bf16, 9.3 times the baseline's speed, stood below the baseline."""
    first = trial("bf16", 0.1, 60)
    on_top = trial("cuda-graphs", 0.09, 50, base=first.candidate, base_s=0.1, stage="screened")
    found = pareto_front(seen((on_top, first), BASE))
    assert found[0].case == on_top.candidate
    assert found[0].ratio.estimate == pytest.approx(0.09)


def test_what_stands_on_an_unknown_ratio_is_unknown_too(run_study):
    """The base was left out, for its numbers do not hold: nothing leads from the baseline to it."""
    lost = trial("bf16", 0.5, 60).candidate
    first = trial("sdpa", 0.4, 50, base=lost, base_s=0.5)
    second = trial("compile", 0.3, 40, base=first.candidate, base_s=0.4)
    plain = trial("checkpointing", 1.2, 10)
    read_ = msgspec.structs.replace(
        read(run_study), baseline=msgspec.structs.replace(read(run_study).baseline, case=BASE)
    )
    study = msgspec.structs.replace(run_study, trials=(first, second, plain))
    (block,) = pareto_section(study, read_).blocks
    assert block.table.rows[0][0] == "baseline"


def test_the_section_of_a_run(run_study):
    (block,) = pareto_section(run_study, read(run_study)).blocks
    assert [row[0] for row in block.table.rows][-1] == "baseline"
    assert block.table.rows[0][1].startswith("10.30× (10.27–10.33×)")


@pytest.mark.parametrize(
    ("joules", "respects"),
    [
        (5.0, "time, peak memory, energy and numerics"),
        (None, "time, peak memory and numerics"),
    ],
)
def test_energy_is_named_only_where_it_was_counted(run_study, joules, respects):
    trials = tuple(
        msgspec.structs.replace(
            each,
            pairs=tuple(
                msgspec.structs.replace(pair, base_j=joules, candidate_j=joules)
                for pair in each.pairs
            ),
        )
        for each in run_study.trials
    )
    study = msgspec.structs.replace(run_study, trials=trials)
    (block,) = pareto_section(study, read(study)).blocks
    assert f"no other tried one beats in {respects} at once" in block.table.note
