"""Changing lengths and padding: which cases, over whole cycles, and when a longer start has paid."""

import math

import msgspec
import pytest

from peakward.records.measurement import Run
from peakward.studies import compile as compile_study
from peakward.studies.compile.shapes import EIGHTHS, cells, plan, steps_to_pay
from peakward.studies.readings import Readings


def test_three_engines_on_a_gpu_and_two_on_a_cpu(setting):
    def engines(device):
        return {cell.engine for cell in cells(Readings(), setting(device=device))}

    assert engines("cuda") == {"eager", "compile default", "cuda-graphs"}
    assert engines("cpu") == {"eager", "compile default"}


def test_each_engine_runs_over_changing_and_over_padded_lengths(setting):
    found = [(cell.engine, cell.lengths) for cell in cells(Readings(), setting())]
    assert len(found) == len(set(found)) == 6
    for case, _ in plan(setting()):
        assert len(case.workload.varying_seq_lens) == len(EIGHTHS)
        assert max(case.workload.varying_seq_lens) == case.workload.seq_len


def test_whole_cycles_are_timed(setting):
    for _, protocol in plan(setting()):
        assert protocol.min_steps == protocol.max_steps
        assert protocol.max_steps % len(EIGHTHS) == 0
        assert protocol.warmup_steps % len(EIGHTHS) == 0


@pytest.fixture
def cell(setting, gathered):
    """One way under compile, of a mean step and with so many seconds of warm-up beyond the steady ones."""
    here = setting()
    found = cells(gathered(compile_study, here), here)[2]

    def make(mean_s, start_s):
        made = found.measurement
        # Lengths within a cycle differ, from an eighth of 16/9 of the mean to all of it.
        steps = tuple(mean_s * eighths / 4.5 for eighths in EIGHTHS)
        warmup = (steps[0] + start_s, *steps[1:])
        summary = msgspec.structs.replace(made.summary, mean_s=mean_s)
        run = Run(warmup_s=warmup + steps, steps_s=steps * 4)
        return msgspec.structs.replace(
            found, measurement=msgspec.structs.replace(made, runs=(run,), summary=summary)
        )

    return make


def test_the_start_is_the_warm_up_beyond_steady_cycles(cell):
    assert cell(0.030, 20.0).start_s == pytest.approx(20.0)
    assert cell(0.030, -1.0).start_s == 0.0, "noise is no start"


def test_a_longer_start_is_paid_by_the_time_that_it_saves(cell):
    slow, quick = cell(0.040, 10.0), cell(0.030, 20.0)
    assert steps_to_pay(quick, slow) == pytest.approx(1000)
    assert steps_to_pay(slow, quick) == math.inf, "its step is longer"
    assert steps_to_pay(cell(0.030, 5.0), slow) == 0, "it does not even take longer to start"
    assert steps_to_pay(cell(0.030, 20.0), cell(0.030, 10.0)) == math.inf, "it saves nothing"


def test_of_a_way_that_failed_nothing_is_told(cell):
    failed = msgspec.structs.replace(cell(0.03, 1.0), measurement=None)
    assert failed.start_s is failed.mean_s is failed.report is None
    assert steps_to_pay(failed, cell(0.03, 1.0)) is None
