import msgspec
import pytest

from peakward.report.run import summary
from peakward.report.run.investigation import read

replace = msgspec.structs.replace


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
