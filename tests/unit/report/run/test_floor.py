import msgspec
import pytest

from peakward.report.run.floor import ceilings, phase_table
from peakward.report.run.investigation import read

replace = msgspec.structs.replace


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
