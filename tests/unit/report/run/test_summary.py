"""Baseline and best side by side: large figures, speed, statistics, sensors, and the floor's share."""

import msgspec
import pytest

from peakward.records.linear_layers import LinearChoice, LinearTimes
from peakward.report.run import summary
from peakward.report.run.investigation import read
from peakward.report.run.summary import ceilings, figures, phase_table

replace = msgspec.structs.replace


def shown(study):
    return {each.name: (each.value, each.detail) for each in figures(read(study))}


def test_the_best_beside_the_baseline(run_study):
    found = shown(run_study)
    assert found["speed-up"] == ("10.30×", "10.27–10.33×, run in pairs")
    assert found["step"] == ("97.5 ms", "baseline 1.00 s")
    assert found["peak memory"] == ("25.7 GiB", "baseline 58.9 GiB")
    assert "ceiling share" not in found


def test_shares_of_different_peaks_are_not_set_beside_each_other(run_study):
    found = shown(run_study)
    assert found["MFU"][1] == "of 989 TFLOP/s bf16"
    assert found["share of floor"][1] is None
    before, after = run_study.predictions
    same = replace(run_study, predictions=(replace(before, compute_type="bf16"), after))
    assert shown(same)["MFU"][1].startswith("baseline ")
    assert shown(same)["share of floor"][1].startswith("baseline ")


def test_where_no_datasheet_is_known_the_ceiling_stands_in(run_study):
    unknown = tuple(replace(each, peak_flops_per_s=None) for each in run_study.predictions)
    found = shown(replace(run_study, predictions=unknown))
    assert "MFU" not in found
    assert found["ceiling share"][0] == "54.5%"


def test_a_baseline_alone_is_compared_with_nothing(run_study):
    alone = replace(run_study, measurements=run_study.measurements[:1], trials=())
    assert shown(alone)["step"] == ("1.00 s", None)
    assert "speed-up" not in shown(alone)


def column(table, name):
    index = [each.name for each in table.columns].index(name)
    return [row[index] for row in table.rows]


def test_speed_of_baseline_and_best(run_study):
    table = summary.speed_table(read(run_study))
    assert column(table, "step") == [1.004, 0.0975]
    assert column(table, "MFU")[1] == pytest.approx(0.4324, rel=1e-3)
    assert column(table, "of peak") == ["67.0 TFLOP/s fp32", "989 TFLOP/s bf16"]
    assert column(table, "peak memory")[0] == round(58.9 * 2**30)
    assert table.note is None


def test_a_ceiling_share_above_100_percent_is_flagged_with_its_reason(run_study):
    slow = tuple(
        replace(each, matmul_flops_per_s=0.9 * 3 * 1.39e13 / 1.004)
        for each in run_study.predictions[:1]
    )
    table = summary.speed_table(read(replace(run_study, predictions=slow)))
    assert column(table, "ceiling share")[0] == pytest.approx(1 / 0.9)
    assert "baseline's ceiling share is above 100%: it ran at 1.11× of" in table.note


def test_statistics_with_verdict_and_reasons(run_study):
    table = summary.statistics_table(read(run_study))
    assert column(table, "verdict") == ["stable", "throttled"]
    assert column(table, "reasons") == [
        None,
        "SM clock 1,740 MHz at its lowest, 1,980 at its highest",
    ]
    assert column(table, "median (95% interval)")[0] == "1.004 s (1.002–1.006 s)"
    assert column(table, "steps") == [30, 30]
    assert column(table, "processes") == [2, 2]


def test_a_case_without_times_shows_its_status(run_study):
    failed = replace(
        run_study.measurements[0], status="timeout", reason="600 s passed", summary=None
    )
    found = read(replace(run_study, measurements=(failed, run_study.measurements[1])))
    assert column(summary.speed_table(found), "step")[0] == "timeout"
    assert column(summary.statistics_table(found), "verdict")[0] == "timeout"
    assert column(summary.statistics_table(found), "reasons")[0] == "600 s passed"
    assert summary.status(None) == "not measured"


def test_compile_and_telemetry_only_where_there_are_any(run_study):
    found = read(run_study)
    assert column(summary.compile_table(found), "compile time") == [38.4]
    assert column(summary.telemetry_table(found), "power (W)") == ["642 (410–699)"] * 2
    bare = replace(
        run_study,
        measurements=tuple(
            replace(each, compile=None, telemetry=None) for each in run_study.measurements
        ),
    )
    assert summary.compile_table(read(bare)) is None
    assert summary.telemetry_table(read(bare)) is None


def test_layers_in_fp8_stand_with_their_times(run_study):
    assert summary.linear_tables(read(run_study)) == ()
    times = {"tokens": 64, "inputs": 32, "outputs": 48, "bias": True, "plain_s": 2e-3}
    choice = LinearChoice(
        layers=(
            LinearTimes(**times, fp8_s=1e-3, n_layers=3, n_taken=2),
            LinearTimes(**times | {"bias": False}, fp8_s=3e-3, n_layers=1, n_taken=0),
        ),
        left=("head shares its weight with embedding.weight",),
    )
    chosen = replace(
        run_study,
        measurements=(
            replace(run_study.measurements[0], linear=choice),
            *run_study.measurements[1:],
        ),
    )
    (table,) = summary.linear_tables(read(chosen))
    assert table.title == "Linear layers in fp8, baseline"
    assert column(table, "fp8") == [1e-3, 3e-3]
    assert column(table, "taken") == [2, 0]
    assert table.note.endswith("head shares its weight with embedding.weight.")


@pytest.fixture
def baseline(run_study):
    return read(run_study).baseline


def test_floor_beside_measurement_for_each_phase_and_the_step(baseline):
    table = phase_table(baseline)
    assert [row[0] for row in table.rows] == ["forward", "backward", "optimizer", "step"]
    forward, *_, step = table.rows
    assert forward[3:6] == (pytest.approx(1.39e13 / 50.9e12), "compute", "331 ms")
    assert forward[6] == pytest.approx(1.39e13 / 50.9e12 / 0.331)
    assert step[5] == "1.004 s (1.002–1.006 s)"
    assert "before the measurement" in table.note


def test_phases_that_were_not_timed_are_empty(baseline):
    untimed = replace(baseline, measurement=replace(baseline.measurement, phases=()))
    table = phase_table(untimed)
    assert [row[5] for row in table.rows] == [None, None, None, "1.004 s (1.002–1.006 s)"]
    assert "need not add up" not in table.note


def test_a_case_that_failed_says_why(baseline):
    failed = replace(baseline.measurement, status="oom", reason="no room", summary=None, phases=())
    table = phase_table(replace(baseline, measurement=failed))
    assert table.rows[-1][5:] == ("oom", None)
    assert "ended as oom: no room." in table.note


def test_a_time_below_its_floor_is_flagged(baseline):
    fast = replace(baseline.prediction, floor_s=2.0, phases=baseline.prediction.phases)
    assert "Faster than its floor: step." in phase_table(replace(baseline, prediction=fast)).note


def test_an_unknown_rate_leaves_the_floor_out(baseline):
    phases = tuple(
        replace(phase, compute_s=None, floor_s=None, bound=None)
        for phase in baseline.prediction.phases
    )
    unknown = replace(baseline.prediction, phases=phases, floor_s=None, matmul_flops_per_s=None)
    table = phase_table(replace(baseline, prediction=unknown))
    assert all(row[3] is None and row[6] is None for row in table.rows)
    assert phase_table(replace(baseline, prediction=None)) is None


def test_every_ceiling_says_where_it_comes_from(run_study):
    facts = {fact.name: fact.value for fact in ceilings(run_study, read(run_study)).facts}
    assert facts == {
        "fp32 matmul": "50.9 TFLOP/s, measured here at 8,192³",
        "memory": "4,260 GB/s, measured here",
        "fp32 dense peak": "67.0 TFLOP/s, from the datasheet of NVIDIA H200",
        "bf16 matmul": "785 TFLOP/s, measured here at 8,192³",
        "bf16 dense peak": "989 TFLOP/s, from the datasheet of NVIDIA H200",
    }


def test_ceilings_of_a_datasheet_and_unknown_ones(run_study):
    stated, unknown = run_study.predictions
    study = replace(
        run_study,
        predictions=(
            replace(stated, source="datasheet"),
            replace(unknown, matmul_flops_per_s=None),
        ),
    )
    facts = {fact.name: fact.value for fact in ceilings(study, read(study)).facts}
    assert facts["fp32 matmul"] == "50.9 TFLOP/s, from the datasheet"
    assert facts["bf16 matmul"] == "unknown on this device"


def test_two_peaks_of_the_head_are_in_one_unit(run_study):
    baseline, best = run_study.measurements
    peaks = (int(1.5 * 2**30), 600 * 2**20)
    made = tuple(
        replace(each, memory=replace(each.memory, peak_allocated_bytes=peak))
        for each, peak in zip((baseline, best), peaks, strict=True)
    )
    assert shown(replace(run_study, measurements=made))["peak memory"] == (
        "0.586 GiB",
        "baseline 1.50 GiB",
    )
