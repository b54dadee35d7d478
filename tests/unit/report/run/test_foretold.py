"""What was predicted beside what was measured."""

import msgspec
import pytest

from peakward.records.measurement import Interval
from peakward.records.memory import MemoryPrediction, MemorySplit
from peakward.records.plan import Absent, Forecast
from peakward.records.prediction import OperatorTime, PhasePrediction, StepTime
from peakward.records.profile import OperatorRate
from peakward.report.document import Note, TableBlock
from peakward.report.run import foretold
from peakward.report.run.investigation import read

GIB = 2**30


def operator(name, phase, category, n_calls, device_s):
    return OperatorTime(
        name=f"aten.{name}",
        phase=phase,
        module=None,
        category=category,
        n_calls=n_calls,
        flops=0,
        bytes=0,
        device_s=device_s,
        bound="compute",
    )


def forecast(case, step_s, *operators, absent=()):
    """Of a step that takes so long, the ends of its interval 10% off."""
    whole = Interval(estimate=step_s, low=0.9 * step_s, high=1.1 * step_s, level=0.9)
    device_s = sum(each.device_s for each in operators)
    time = StepTime(
        case=case,
        device="H200",
        source="calibrated",
        step_s=whole,
        bound="device",
        phases=(PhasePrediction(phase="forward", device_s=device_s, host_s=1e-3, n_launches=10),),
        operators=operators,
    )
    memory = MemoryPrediction(
        case=case,
        phase="backward",
        peak=MemorySplit(parameters_bytes=2 * GIB),
        reserved_bytes=3 * GIB,
        context_bytes=GIB,
    )
    return Forecast(
        case=case,
        device="h200-141",
        device_name="H200",
        group=None,
        time=time,
        communication=None,
        step_s=whole,
        floor_s=None,
        tokens_per_s=None,
        mfu=None,
        peak_flops_per_s=None,
        memory=memory,
        needed_bytes=4 * GIB,
        limit_bytes=100 * GIB,
        fits=True,
        gpu_hours_per_million_tokens=None,
        cost_per_million_tokens=None,
        energy_per_token_j=None,
        absent=absent,
    )


def section(study, *forecasts):
    told = msgspec.structs.replace(study, forecasts=forecasts)
    return foretold.section(told, read(told))


def tables(found):
    return {each.table.title: each.table for each in found.blocks if isinstance(each, TableBlock)}


def test_without_forecasts_there_is_nothing(run_study):
    assert section(run_study).blocks == ()


def test_step_and_memory_have_their_residuals(run_study):
    baseline = read(run_study).baseline
    measured_s = baseline.step_s
    found = section(run_study, forecast(baseline.case, measured_s / 1.25))
    step, memory = tables(found)["The step"].rows
    assert step[:2] == ("baseline", "step")
    assert step[-1] == "+25.0%"
    peak = baseline.measurement.memory.peak_allocated_bytes
    assert memory[2] == "2.00 GiB"
    assert memory[-1] == foretold.residual(2 * GIB, peak)


def test_memory_of_compiled_code_is_said_to_be_the_uncompiled_step_s(run_study):
    told = forecast(read(run_study).baseline.case, 1.0)
    memory = msgspec.structs.replace(told.memory, basis="eager step")
    found = section(run_study, msgspec.structs.replace(told, memory=memory))
    assert tables(found)["The step"].rows[1][1] == "peak memory, uncompiled"


@pytest.mark.parametrize(
    ("predicted", "measured", "said"),
    [(1.0, 1.1, "+10.0%"), (2.0, 1.0, "\N{MINUS SIGN}50.0%"), (1.0, 0.9999, "<0.1%"), (1, 1, "0%")],
)
def test_a_residual_is_what_is_measured_more(predicted, measured, said):
    assert foretold.residual(predicted, measured) == said


def test_work_is_compared_by_phase_and_category_a_step(run_study):
    """The profile's 0.801 s of forward products are of three steps; copies count as elementwise."""
    baseline = read(run_study).baseline
    told = forecast(
        baseline.case,
        1.0,
        operator("mm", "forward", "matmul", 5, 0.2),
        operator("bmm", "forward", "matmul", 5, 0.067),
        operator("add", "forward", "elementwise", 5, 0.01),
        operator("clone", "forward", "copy", 5, 0.02),
        operator("neg", "optimizer", "elementwise", 1, 1e-9),
    )
    rows = {row[:2]: row[2:] for row in named(run_study, told, "work on the device").rows}
    predicted, profiled, residual = rows["forward", "matmul"]
    assert (predicted, profiled) == (pytest.approx(0.267), pytest.approx(0.267))
    assert residual == "<0.1%" or residual == "0%"
    assert rows["forward", "elementwise and copies"][0] == pytest.approx(0.03)


def test_operators_are_compared_where_both_have_them_as_often(run_study):
    baseline = read(run_study).baseline
    rate = OperatorRate(
        name="aten::mm",
        dims="",
        dtype=None,
        n=30,
        flops=None,
        n_bytes=None,
        kernel_ns=900_000_000,
        flops_per_s=None,
        bytes_per_s=None,
        roof_share=None,
    )
    other = msgspec.structs.replace(rate, name="aten::bmm", n=31)
    first, *rest = run_study.profiles
    profile = msgspec.structs.replace(first.profile, operators=(rate, other))
    study = msgspec.structs.replace(
        run_study, profiles=(msgspec.structs.replace(first, profile=profile), *rest)
    )
    told = forecast(
        baseline.case,
        1.0,
        operator("mm", "forward", "matmul", 4, 0.1),
        operator("mm", "backward", "matmul", 6, 0.2),
        operator("bmm", "forward", "matmul", 10, 0.2),
        operator("gelu", "forward", "elementwise", 10, 0.2),
    )
    rows = named(study, told, "operators").rows
    assert [row[0] for row in rows] == ["mm"], "bmm ran otherwise than was thought"
    assert rows[0][1:4] == (10, pytest.approx(0.3), pytest.approx(0.3))


def test_what_could_not_be_predicted_is_said(run_study):
    baseline = read(run_study).baseline
    absent = (
        Absent(figure="step time", reason="of compiled code nothing is known"),
        Absent(figure="energy", reason="no limit"),
    )
    found = section(run_study, forecast(baseline.case, 1.0, absent=absent))
    notes = [each.text for each in found.blocks if isinstance(each, Note)]
    assert notes == ["Baseline, step time not predicted: of compiled code nothing is known."]


def named(study, told, words):
    return next(table for title, table in tables(section(study, told)).items() if words in title)
