"""The grid of `memory`."""

import msgspec
import pytest

from peakward.prediction.memory.peak import peak_memory
from peakward.studies import memory
from peakward.studies.memory.grid import (
    longest,
    named,
    plan,
    read,
    residual_bytes,
)
from peakward.studies.peaks import predicted_peak, prediction
from peakward.studies.scope import Scope


@pytest.fixture
def cells(setting, gathered):
    here = setting()
    return read(gathered(memory, here), here)


def lengths(setting):
    return sorted({case.workload.seq_len for case, _ in plan(setting)})


def test_every_size_precision_pass_and_length(setting):
    cases = [case for case, _ in plan(setting("small", "cpu"))]
    assert len(cases) == len(set(cases)) == 2 * 2 * 2 * 3
    assert {case.workload.pass_ for case in cases} == {"forward", "train_step"}
    assert {case.configuration.precision for case in cases} == {"fp32", "bf16-mixed"}
    assert {case.configuration.attention for case in cases} == {"naive"}


def test_there_are_three_lengths_unless_others_are_asked_for(setting):
    assert lengths(setting("small", "cpu")) == [64, 128, 256]
    assert lengths(setting("corners")) == [128, 512, 1024]
    assert lengths(setting("full")) == [128, 256, 512, 1024]
    assert lengths(setting(Scope("corners", seq_lens=(64,)))) == [64]


def test_precisions_asked_for_replace_the_studys_own(setting):
    here = setting(Scope("corners", precisions=("bf16",)))
    assert {case.configuration.precision for case, _ in plan(here)} == {"bf16"}


def test_what_failed_is_not_recorded(setting, gathered):
    here = setting()

    def overrule(case):
        return "oom" if case.workload.trains else None

    found = read(gathered(memory, here, overrule=overrule), here)
    assert {cell.case.workload.pass_ for cell in found if cell.memory} == {"forward"}
    assert longest(found) == ()


def test_the_longest_train_step_of_each_size_and_precision(cells):
    found = longest(cells)
    assert len(found) == 4
    assert {cell.case.workload.seq_len for cell in found} == {1024}
    assert named(found[0]) == "small 4 × 1024 train_step in fp32"


def test_a_prediction_is_of_a_gpu_and_held_against_what_a_cpu_has_of_it(cells):
    case = cells[0].case
    on_cpu = msgspec.structs.replace(case, device="cpu")
    found = peak_memory(case)
    assert prediction(on_cpu).peak == found.peak
    assert predicted_peak(case) == found.peak_bytes
    only_gpu = found.peak.workspace_bytes + found.peak.rounding_bytes
    assert predicted_peak(on_cpu) == found.peak_bytes - only_gpu
    assert cells[0].actual_bytes == cells[0].measurement.memory.peak_allocated_bytes


def test_on_a_cpu_it_is_held_against_the_phase_of_the_predicted_peak(setting, gathered):
    here = setting("small", "cpu")
    for cell in read(gathered(memory, here), here):
        held = {each.phase: each.allocated_bytes for each in cell.memory.phases}
        assert cell.actual_bytes == held[prediction(cell.case).phase]


def test_one_activation_of_the_residual_stream(cells):
    case = longest(cells)[0].case
    assert residual_bytes(case) == 4 * 1024 * case.model.d_model * 4
    halved = msgspec.structs.replace(case.configuration, precision="bf16")
    half = msgspec.structs.replace(case, configuration=halved)
    assert residual_bytes(half) == residual_bytes(case) / 2
