"""What `checkpointing` concludes."""

import msgspec
import pytest

from peakward.records.measurement import MemoryUse
from peakward.report.format import format_cell
from peakward.studies import checkpointing
from peakward.studies.checkpointing import conclusions, grid
from peakward.studies.peaks import predicted_peak


@pytest.fixture
def said(setting, gathered):
    def make(**options):
        here = setting()
        return checkpointing.parts(gathered(checkpointing, here, **options), here).conclusions

    return make


def with_peak(measurement, times=1.0):
    """The measurement, its peak so many times the predicted one."""
    peak = round(times * predicted_peak(measurement.case))
    return msgspec.structs.replace(measurement, memory=MemoryUse(peak_allocated_bytes=peak))


@pytest.fixture
def cells(setting, gathered):
    here = setting()
    return [
        msgspec.structs.replace(
            cell, measurement=with_peak(cell.measurement), plain=with_peak(cell.plain)
        )
        for cell in grid.cells(gathered(checkpointing, here), here)
    ]


def test_what_a_mode_costs(said, figures):
    told = next(each for each in said() if each.text.startswith("selective takes"))
    values = figures(told)
    assert values["cases"] == 4
    assert values["time over none's"] == pytest.approx(1.0)
    assert values["recomputed FLOPs"] == 0
    assert "the geometric mean over 4 cases (" in told.text


def test_what_a_mode_saves_is_told_by_where_the_peak_lies(cells, figures):
    """As on an H200: of `small` at 1024 tokens the backward pass holds most, of the others the optimizer."""
    told = next(
        each
        for each in conclusions.costs(cells)
        if each.text.startswith("sqrt holds of none's peak")
    )
    values = figures(told)
    in_backward = "peak over none's, backward"
    assert values["cases, optimizer"] == 3
    assert values[in_backward] < 1
    assert (
        f"{format_cell(values[in_backward], 'share')} (small 4 × 1024 train_step), where that"
        in told.text
    )
    assert "where that peak lies in the optimizer's step, which holds no activations." in told.text
    assert not any("mean" in name for name in values), "no mean over the phases"


def test_one_case_has_no_mean(said):
    def one(case):
        return None if (case.model.name, case.workload.seq_len) == ("small", 1024) else "crashed"

    told = next(each for each in said(overrule=one) if each.text.startswith("sqrt takes"))
    assert " none's time (small 4 × 1024 train_step); it recomputes " in told.text


def test_shares_that_print_alike_are_no_range(cells):
    level = [
        msgspec.structs.replace(cell, measurement=cell.plain)
        for cell in cells
        if cell.mode in ("none", "sqrt")
    ]
    (told, *_) = [each for each in conclusions.costs(level) if each.text.startswith("sqrt holds")]
    assert "100% in each of 3 cases, where that peak lies in the optimizer's step" in told.text


def test_a_peak_that_is_not_the_predicted_one_lies_in_no_known_phase(cells):
    """As of a CPU's process."""
    higher = [msgspec.structs.replace(cell, plain=with_peak(cell.plain, 1.1)) for cell in cells]
    (told, *_) = [each for each in conclusions.costs(higher) if each.text.startswith("sqrt holds")]
    assert told.text.endswith("where that peak lies in a phase that is not known.")
    assert "lies in the" not in told.text


def test_the_largest_by_mode(said, figures):
    told = next(each for each in said() if "the largest batch" in each.text)
    values = figures(told)
    assert values["every-block over none, at least"] == pytest.approx(
        values["fits with every-block"] / values["does not fit with none"]
    )
    assert told.text.startswith(
        "Under 24.0 GiB the largest batch at sequence 1024 of small: everything kept at least "
    )
    assert f"({values['does not fit with none']:,} does not fit)" in told.text


def test_a_search_that_a_timeout_ended_says_nothing_of_the_largest(said):
    def slow(case):
        big = case.memory_limit_bytes and case.configuration.checkpointing == "every-block"
        return "timeout" if big else None

    assert not any("the largest" in each.text for each in said(overrule=slow))


def test_where_nothing_fits_with_everything_kept_the_others_are_still_told(said):
    def no_room(case):
        plain = case.memory_limit_bytes and case.configuration.checkpointing == "none"
        return "oom" if plain else None

    told = next(each for each in said(overrule=no_room) if "the largest batch" in each.text)
    assert "everything kept none; every-block at least " in told.text


def test_without_keeping_everything_there_is_nothing_to_compare(said):
    def no_plain(case):
        return "timeout" if case.configuration.checkpointing == "none" else None

    assert said(overrule=no_plain) == ()


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()
