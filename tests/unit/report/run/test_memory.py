"""The memory section of a run's page."""

import importlib.util
from pathlib import Path

import msgspec
import pytest

from peakward.records.memory import (
    CaseMemory,
    KernelPhase,
    MemoryPrediction,
    MemorySplit,
    PeakMoment,
    PhasePeak,
    StepClock,
)
from peakward.records.plan import Forecast
from peakward.report.run import memory
from peakward.report.run.investigation import read
from peakward.report.run.memory import PEAK_COLUMNS, QUEUE_COLUMNS, peak_rows, queue_rows

GIB = 2**30


def tables(study):
    return {block.table.title: block.table for block in memory.section(study, read(study)).blocks}


def rows(table):
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


@pytest.fixture
def foretold(run_study):
    """The study, its baseline's memory predicted."""
    case = read(run_study).baseline.case
    predicted = MemoryPrediction(
        case=case,
        phase="backward",
        peak=MemorySplit(parameters_bytes=2 * GIB, activations_bytes=3 * GIB),
        reserved_bytes=6 * GIB,
        context_bytes=GIB,
    )
    told = Forecast(
        **dict.fromkeys(Forecast.__struct_fields__)
        | {"case": case, "device": "h200-141", "device_name": "H200", "memory": predicted}
        | {"limit_bytes": 100 * GIB, "absent": ()}
    )
    return msgspec.structs.replace(run_study, forecasts=(told,))


def test_the_predicted_peak_by_category_stands_beside_the_measured(foretold):
    (row,) = rows(tables(foretold)["Peak memory: predicted by category, and measured"])
    measured = read(foretold).baseline.measurement.memory.peak_allocated_bytes
    assert row == {
        "configuration": "baseline",
        "peak in": "backward",
        "parameters": 2 * GIB,
        "activations": 3 * GIB,
        "predicted": 5 * GIB,
        "measured": measured,
    }


def test_each_lever_once_on_each_base_what_saves_most_first(run_study):
    found = rows(tables(run_study)["Effect of each lever on the peak"])
    changes = [row["change"] for row in found]
    assert found and changes == sorted(changes)
    assert len({(row["lever"], row["on"]) for row in found}) == len(found)
    for row in found:
        assert row["change"] == row["with"] / row["without"] - 1


def test_without_predictions_and_trials_there_is_no_section(run_study):
    bare = msgspec.structs.replace(run_study, trials=(), steps=(), memory=())
    assert memory.section(bare, read(bare)).blocks == ()


def test_what_a_stored_recording_told_of_a_configuration(run_study, case_memory):
    case = read(run_study).baseline.case
    study = msgspec.structs.replace(run_study, memory=(case_memory(case),))
    (at_peak,) = rows(tables(study)["Peaks on the clock of the kernels"])
    (queue,) = rows(tables(study)["How far the host was ahead at these peaks"])
    assert at_peak | queue == {
        "configuration": "baseline",
        "phase": "forward",
        "peak": 512,
        "at": 1e-3,
        "operator": "aten::mm",
        "kernel at work": "gemm",
        "category": "matmul",
        "queued": 2e-4,
        "host ahead": 5e-4,
        "kernels from": 1e-4,
        "kernels to": 3e-3,
    }
    without = msgspec.structs.replace(run_study, memory=())
    assert "Peaks on the clock of the kernels" not in tables(without)


@pytest.fixture
def case_memory():
    """Makes what was recorded of a case, one phase on its clock."""

    def make(case):
        moment = PeakMoment(
            phase="forward",
            at_s=1e-3,
            operator="aten::mm",
            kernel="gemm",
            category="matmul",
            queued_s=2e-4,
            host_ahead_s=5e-4,
        )
        return CaseMemory(
            id="h1",
            case=case,
            environment_key="here",
            snapshot="a.pickle.gz",
            peak_bytes=512,
            counted_peak_bytes=512,
            reserved_bytes=2**21,
            phases=(PhasePeak(phase="forward", event=1, allocated_bytes=512, purposes=()),),
            purposes=("parameters",),
            timeline=(),
            modules=(),
            largest=(),
            clock=StepClock(
                trace="a.json.gz",
                times_s=(),
                peaks=(moment,),
                kernels=(KernelPhase(phase="forward", begin_s=1e-4, end_s=3e-3),),
            ),
        )

    return make


def recorded():
    path = Path(__file__).parents[3] / "golden" / "studies.py"
    spec = importlib.util.spec_from_file_location("studies", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.recorded()


def test_a_row_of_each_for_every_phase():
    memory = recorded()
    peaks, queue = peak_rows(memory), queue_rows(memory)
    assert [row[0] for row in peaks] == [each.phase for each in memory.phases]
    assert [row[0] for row in queue] == [row[0] for row in peaks]
    assert {len(row) for row in peaks} == {len(PEAK_COLUMNS)}
    assert {len(row) for row in queue} == {len(QUEUE_COLUMNS)}


def test_without_a_clock_there_is_none():
    memory = msgspec.structs.replace(recorded(), clock=None, not_joined="got 3 for 4")
    assert peak_rows(memory) == queue_rows(memory) == []
