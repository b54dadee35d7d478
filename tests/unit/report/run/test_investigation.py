"""The story of a `run` study: its baseline, the kept levers, its best configuration and efficiency."""

import msgspec
import pytest

from peakward.records.errors import PeakwardError
from peakward.report.run.investigation import (
    compulsory_bytes,
    cumulative_speedups,
    efficiency,
    measured_matmul_rate,
    model_flops,
    quotient,
    read,
)

replace = msgspec.structs.replace


def test_the_chain_leads_from_the_baseline_to_the_best(run_study, studies):
    found = read(run_study)
    assert [trial.lever for trial in found.steps] == ["bf16", "compile", "sdpa", "fused-optimizer"]
    assert found.baseline.case == studies.BASELINE
    assert found.best.case == studies.BEST
    assert found.best.step_s == 0.0975


def test_the_steps_are_those_that_the_study_names(run_study):
    """One of them unsettled, which no chain of kept ones would hold."""
    chain = read(run_study).steps
    trials = tuple(
        replace(trial, id=f"t{i}", verdict="inconclusive" if trial == chain[1] else trial.verdict)
        for i, trial in enumerate(run_study.trials)
    )
    ids = tuple(f"t{run_study.trials.index(step)}" for step in chain)
    named = read(replace(run_study, trials=trials, steps=ids))
    assert [trial.lever for trial in named.steps] == ["bf16", "compile", "sdpa", "fused-optimizer"]
    assert read(replace(run_study, trials=trials, steps=())).steps == ()


def test_the_whole_is_judged_by_its_own_pairs(run_study):
    found = read(run_study)
    assert found.direct.lever == "composition"
    assert found.speedup.estimate == pytest.approx(1 / 0.0971)
    assert found.speedup.interval.low == pytest.approx(1 / 0.0974)


def test_without_them_by_the_two_medians(run_study):
    found = read(replace(run_study, trials=run_study.trials[:-1]))
    assert found.direct is None
    assert found.speedup.estimate == pytest.approx(1.004 / 0.0975)
    assert found.speedup.interval is None


def test_without_a_measurement_of_the_best_by_the_steps(run_study, studies):
    found = read(
        replace(run_study, measurements=run_study.measurements[:1], trials=run_study.trials[:-1])
    )
    assert found.best.case == studies.BEST
    assert found.best.measurement is None
    assert found.speedup.estimate == pytest.approx(cumulative_speedups(found.steps)[-1])


def test_a_lever_kept_on_a_base_that_was_left_is_no_step(run_study, studies):
    other = studies.with_settings(studies.BASELINE, precision="tf32")
    stray = studies.trial(
        "tf32", studies.BASELINE, other, "confirmed", "kept", (0.3, 0.29, 0.31), "faster"
    )
    found = read(replace(run_study, trials=(stray, *run_study.trials)))
    assert "tf32" not in [trial.lever for trial in found.steps]


def test_no_lever_kept(run_study):
    found = read(replace(run_study, measurements=run_study.measurements[:1], trials=()))
    assert found.best is None
    assert found.speedup is None
    assert found.points == (found.baseline,)


def test_a_baseline_that_does_not_fit_and_a_best_that_does(run_study):
    baseline = replace(
        run_study.measurements[0], status="oom", reason="no room", summary=None, phases=()
    )
    rescue = replace(
        run_study.trials[6], stage="screened", pairs=(), time_ratio=None, reason="runs"
    )
    found = read(
        replace(
            run_study,
            measurements=(baseline, run_study.measurements[1]),
            trials=(rescue, *run_study.trials[7:-1]),
        )
    )
    assert found.steps[0].lever == "bf16"
    assert found.speedup is None


def test_a_study_without_its_baseline_is_refused(run_study):
    with pytest.raises(PeakwardError, match="run it again"):
        read(replace(run_study, measurements=()))


def test_cumulative_speedups_end_where_a_ratio_is_unknown(run_study):
    steps = read(run_study).steps
    unknown = replace(steps[1], time_ratio=None)
    first, second, third = cumulative_speedups((steps[0], unknown, steps[2]))
    assert first == pytest.approx(1 / 0.1712)
    assert second is third is None


@pytest.fixture
def best(run_study):
    return read(run_study).best


def test_rates_and_shares(best):
    found = efficiency(best)
    flops = 3 * 1.39e13
    assert found.tokens_per_s == pytest.approx(2048 / 0.0975)
    assert found.flops_per_s == pytest.approx(flops / 0.0975)
    assert found.mfu == pytest.approx(flops / 0.0975 / 989e12)
    assert found.ceiling_share == pytest.approx(flops / 0.0975 / 785e12)
    assert found.floor_share == pytest.approx(best.prediction.floor_s / 0.0975)
    assert model_flops(best.prediction) == pytest.approx(flops)
    assert compulsory_bytes(best.prediction) == pytest.approx(10 * 3.407e9 * 2)


def test_an_mfu_above_100_percent_is_refused(best):
    wrong = replace(best, prediction=replace(best.prediction, peak_flops_per_s=400e12))
    with pytest.raises(PeakwardError, match=r"at most 100%, got 106\.92%") as caught:
        efficiency(wrong)
    assert caught.value.exit_code == 1


def test_no_mfu_without_a_datasheet_and_no_ceiling_share_from_one(best):
    unknown = replace(best, prediction=replace(best.prediction, peak_flops_per_s=None))
    assert efficiency(unknown).mfu is None
    stated = replace(best.prediction, source="datasheet")
    assert measured_matmul_rate(stated) is None
    assert efficiency(replace(best, prediction=stated)).ceiling_share is None


def test_nothing_is_computed_of_a_case_that_failed(best):
    failed = replace(best, measurement=replace(best.measurement, summary=None, status="oom"))
    found = efficiency(failed)
    assert {getattr(found, name) for name in found.__struct_fields__} == {None}


def test_without_a_prediction_there_are_still_tokens(best):
    found = efficiency(replace(best, prediction=None))
    assert found.tokens_per_s is not None
    assert found.flops_per_s is found.mfu is found.floor_share is None


def test_quotients_of_unknowns_are_unknown():
    assert quotient(1.0, 4.0) == 0.25
    assert quotient(None, 4.0) is quotient(1.0, None) is quotient(1.0, 0.0) is None
