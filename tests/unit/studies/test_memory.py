"""What `memory` plans, tables and concludes from known records."""

import math

import msgspec
import pytest

from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.parameters import n_parameters
from peakward.studies.cases import with_levers
from peakward.studies.engine import view
from peakward.studies.memory import LEVERS, STUDY, held_bytes, residual_bytes
from peakward.studies.peaks import predicted_peak, prediction
from peakward.studies.power_law import exponent
from peakward.studies.scope import Scope

TOKEN_BYTES = 2**20
"""What a block keeps a token, beside a byte for each pair of tokens."""


@pytest.fixture
def seen(setting, gathered):
    """A view of a lab's grid."""

    def make(device="cuda", scope="corners", **options):
        here = setting(scope, device)
        return view(STUDY.points(here), gathered(STUDY, here, **options), here)

    return make


@pytest.fixture
def told(seen):
    """What the study says of the records of a lab, each changed or not."""

    def make(*arguments, change=None, **options):
        found = seen(*arguments, **options)
        if change is not None:
            for each in found.readings.memory:
                found.readings.add_memory(change(each))
        return STUDY.parts(found.readings, found.setting)

    return make


@pytest.fixture
def named(told, rows):
    """Rows of the tables by title."""
    return lambda **options: {each.title: rows(each) for each in told(**options).tables}


def lengths(setting):
    return sorted({case.workload.seq_len for case, _ in STUDY.plan(setting)})


def test_every_size_precision_pass_and_length(setting):
    cases = [case for case, _ in STUDY.plan(setting("small", "cpu"))]
    assert len(cases) == len(set(cases)) == 2 * 2 * 2 * 3
    assert {case.workload.pass_ for case in cases} == {"forward", "train_step"}
    assert {case.configuration.precision for case in cases} == {"fp32", "bf16-mixed"}
    assert {case.configuration.attention for case in cases} == {"naive"}
    asked = STUDY.plan(setting(Scope("corners", precisions=("bf16",))))
    assert {case.configuration.precision for case, _ in asked} == {"bf16"}


def test_there_are_three_lengths_unless_others_are_asked_for(setting):
    assert lengths(setting("small", "cpu")) == [64, 128, 256]
    assert lengths(setting("corners")) == [128, 512, 1024]
    assert lengths(setting("full")) == [128, 256, 512, 1024]
    assert lengths(setting(Scope("corners", seq_lens=(64,)))) == [64]


def test_peaks_by_phase_and_what_they_hold(named, seen):
    tables, row = named(), seen().rows[3]
    first = tables["Peak memory by phase"][3]
    assert (first["workload"], first["precision"]) == ("4 × 128 train_step", "fp32")
    assert first["optimizer"] == 2 * 4 * n_parameters(row.point.case.model)
    assert first["backward"] == first["forward"] + 512 == first["recorded"]
    assert first["measured"] == row.peak_bytes
    assert tables["Peak memory by phase"][0]["backward"] is None
    held = tables["What is held at the peak of a step"][3]
    assert held["peak in"] == "backward"
    assert held["parameters"] + held["activations"] + held["temporaries"] == first["backward"]
    assert "cache" not in held, "what never occurs has no column"


def test_what_a_block_keeps_and_the_modules_that_made_it(named, seen):
    tables, row = named(), seen().rows[3]
    first = tables["One activation of the residual stream, and what a block keeps"][0]
    assert first["one activation"] == residual_bytes(row) == 4 * 128 * 768 * 4
    assert first["a block keeps"] == 128 * TOKEN_BYTES + 128**2
    assert first["over one activation"] == first["a block keeps"] / first["one activation"]
    ff, softmax = tables["small 4 × 1024 train_step in fp32: activations by module"]
    assert (ff["module"], ff["n"], ff["activations"]) == ("blocks.*.ff", 12, 12 * 2**30)
    assert softmax["activations"] == 12 * 2**20
    assert ff["share"] + softmax["share"] == pytest.approx(1)
    (largest,) = tables["small 4 × 1024 train_step in fp32: the largest allocations"]
    assert largest["each"] == 2**20 and largest["line"] == "reference.py:30 softmax"
    half = with_levers(row.point.case, precision="bf16")
    halved = msgspec.structs.replace(row, point=msgspec.structs.replace(row.point, case=half))
    assert residual_bytes(halved) == residual_bytes(row) / 2


def test_peaks_on_the_clock_of_the_kernels(named):
    tables = named()
    at_peak = tables["Peaks on the clock of the kernels"]
    queue = tables["How far the host was ahead at these peaks"]
    assert len(at_peak) == len(queue) == 3 * 4
    assert (at_peak[0]["phase"], at_peak[0]["kernel at work"]) == ("forward", None)
    backward = at_peak[1] | queue[1]
    assert backward["workload"] == "4 × 1024 train_step"
    assert (backward["at"], backward["operator"]) == (1e-3, "aten::mm")
    assert (backward["host ahead"], backward["kernels from"]) == (5e-4, 2e-3)


def test_a_step_without_a_clock_has_no_rows_says_why_and_is_drawn_by_its_events(told):
    found = told(
        change=lambda each: msgspec.structs.replace(each, clock=None, not_joined="got 3 for 4")
    )
    assert not any(each.rows for each in found.tables if "kernels" in each.title)
    said = [each for each in found.notes if "got 3 for 4" in each]
    assert len(said) == 4
    assert said[0].startswith("small 4 × 1024 train_step in fp32: its memory is not joined")
    assert found.plots[0].x_unit == "count"
    assert [point.x for point in found.plots[0].series[0].points] == [0, 1, 2]


def test_a_prediction_is_of_a_gpu_and_held_against_what_a_cpu_has_of_it(seen):
    row = seen().rows[0]
    case, found = row.point.case, peak_memory(row.point.case)
    assert predicted_peak(case) == found.peak_bytes
    only_gpu = found.peak.workspace_bytes + found.peak.rounding_bytes
    on_cpu = msgspec.structs.replace(case, device="cpu")
    assert predicted_peak(on_cpu) == found.peak_bytes - only_gpu
    assert held_bytes(row) == row.peak_bytes
    for row in seen("cpu", "small").rows:
        held = {each.phase: each.allocated_bytes for each in row.memory.phases}
        assert held_bytes(row) == held[prediction(row.point.case).phase]


def test_levers_are_predicted_beside_none_but_for_those_that_a_case_has(named, seen):
    found = named()["What levers would free: predicted, not measured"]
    case = next(row.point.case for row in seen().rows if row.point.case.workload.seq_len == 1024)
    train = msgspec.structs.replace(
        case, workload=msgspec.structs.replace(case.workload, pass_="train_step")
    )
    base = peak_memory(train).peak_bytes
    for row, (name, settings) in zip(found[: len(LEVERS)], LEVERS.items(), strict=True):
        peak = peak_memory(with_levers(train, **settings)).peak_bytes
        assert (row["lever"], row["predicted peak"]) == (name, peak)
        assert row["over none's"] == peak / base
    mixed = [row["lever"] for row in found if row["precision"] == "bf16-mixed"]
    assert "bf16-mixed" not in mixed and "bf16" in mixed


def test_a_timeline_has_a_line_for_each_category_their_sum_and_the_phases(told):
    plot, *others = told().plots
    assert len(others) == 3 + 1
    names = [each.name for each in plot.series]
    assert names[:5] == ["all", "parameters", "gradients", "activations", "temporaries"]
    assert names[5:] == ["kernels of forward", "kernels of backward", "kernels of optimizer"]
    whole, *parts = (each.points for each in plot.series[:5])
    assert [point.y for point in whole] == [sum(y.y for y in at) for at in zip(*parts, strict=True)]
    assert (plot.x_unit, [point.x for point in whole]) == ("s", [0, 1e-3, 2e-3])
    assert [(each.x, each.y) for each in plot.series[6].points] == [(2e-3, 0), (4e-3, 0)]


def test_peaks_have_a_line_for_each_size_precision_and_pass(told):
    plot = told().plots[-1]
    assert len(plot.series) == 8
    assert all([point.x for point in each.points] == [128, 512, 1024] for each in plot.series)


def test_shares_of_the_peak_add_up(told, figures):
    said = told().conclusions[:4]
    assert "small 4 × 1024 train_step in fp32 holds most in the phase backward" in said[0].text
    found = figures(said[0])
    del found["in all"]
    assert math.fsum(found.values()) == pytest.approx(1)


def test_growth_with_the_sequence_length(told, figures):
    said = told().conclusions[4]
    assert said.text.startswith("From 128 to 1024 tokens the activations of small in fp32 grow")
    found, at = figures(said), (128, 512, 1024)
    assert found["of the softmax's"] == pytest.approx(2)
    whole = exponent(at, [n * TOKEN_BYTES + n**2 for n in at])
    assert found["exponent of all"] == pytest.approx(whole)
    longest = found["softmax's share at the longest"]
    assert longest == pytest.approx(1024 / (TOKEN_BYTES + 1024))


def test_two_lengths_give_no_exponent(told):
    texts = [each.text for each in told("cuda", Scope("corners", seq_lens=(128, 1024))).conclusions]
    assert texts and not any("power" in each for each in texts)


def test_what_a_block_keeps_is_said(told, figures):
    one, _, n = figures(told().conclusions[8]).values()
    assert one * n == pytest.approx(1024 * TOKEN_BYTES + 1024**2)


def test_predictions_from_the_least_to_the_most(told, figures, named):
    found = figures(told().conclusions[-1])
    ratios = [row["predicted over held"] for row in named()["Predicted beside held"]]
    assert found["cases"] == len([each for each in ratios if each])
    ends = found["predicted over held, least"], found["predicted over held, most"]
    assert ends == (min(ratios), max(ratios))


def test_a_record_without_casts_of_weights_says_that_they_are_among_the_activations(told):
    def before(record):
        timeline = tuple(
            msgspec.structs.replace(point, n_bytes=point.n_bytes[:2] + point.n_bytes[3:])
            for point in record.timeline
        )
        names = tuple(name for name in record.purposes if name != "weight_casts")
        return msgspec.structs.replace(record, purposes=names, timeline=timeline)

    assert not any("casts of weights" in each.text for each in told().conclusions)
    parts = told(change=before)
    said = [each.text for each in parts.conclusions if "casts of weights" in each.text]
    assert len(said) == 2 + 2 + 2, "shares, growth and what a block keeps, of two models"
    assert all("bf16-mixed" in each for each in said), "in fp32 nothing is cast"
    assert any("Not measured in this record: casts of weights" in each for each in parts.notes)


def test_what_failed_is_not_recorded_and_of_nothing_nothing_is_said(seen, told):
    found = seen(overrule=lambda case: "oom" if case.workload.trains else None)
    assert {row.point.case.workload.pass_ for row in found.rows if row.memory} == {"forward"}
    assert told(overrule=lambda case: "oom").conclusions == ()
