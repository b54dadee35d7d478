"""The tables and the plot of `checkpointing`."""

import msgspec
import pytest

from peakward.records.measurement import MemoryUse
from peakward.studies import checkpointing
from peakward.studies.peaks import predicted_peak


@pytest.fixture
def parts(setting, gathered):
    def make(**options):
        here = setting()
        return checkpointing.parts(gathered(checkpointing, here, **options), here)

    return make


def test_a_row_a_mode_with_what_is_recomputed(parts, rows):
    found = rows(parts().tables[0])
    assert [row["checkpointing"] for row in found[:4]] == [
        "none",
        "sqrt",
        "every-block",
        "selective",
    ]
    assert [row["recomputed"] > 0 for row in found[:4]] == [False, True, True, False]
    assert (found[0]["of none's"], found[0]["over none's"]) == (1.0, 1.0)


def test_every_row_says_where_a_peak_lies_that_is_the_predicted_one(setting, gathered, rows):
    here = setting()
    readings = gathered(checkpointing, here)
    found = rows(checkpointing.parts(readings, here).tables[0])
    assert None in {row["peak lies in"] for row in found}, "the fake lab has peaks of its own"
    assert all(row["predicted peak"] > 0 for row in found)
    for each in tuple(readings):
        peak = MemoryUse(peak_allocated_bytes=predicted_peak(each.case))
        if each.case.memory_limit_bytes is None:
            readings.add(msgspec.structs.replace(each, memory=peak))
    by_mode = {
        row["checkpointing"]: row["peak lies in"]
        for row in rows(checkpointing.parts(readings, here).tables[0])
        if (row["model"], row["workload"]) == ("small", "4 × 1024 train_step")
    }
    # As on an H200, where the predicted peaks are within 0.7% of the measured ones.
    assert by_mode == {
        "none": "backward",
        "sqrt": "backward",
        "every-block": "optimizer",
        "selective": "backward",
    }


def test_out_of_memory_keeps_its_row(parts, rows):
    made = parts(
        overrule=lambda case: "oom" if case.configuration.checkpointing == "none" else None
    )
    plain = [row for row in rows(made.tables[0]) if row["checkpointing"] == "none"]
    assert {(row["status"], row["peak memory"], row["median"]) for row in plain} == {
        ("oom", None, None)
    }
    assert any("none runs out of memory" in each.text for each in made.conclusions)


def test_the_largest_batch_with_recomputation_is_over_nones(parts, rows):
    found = rows(parts().tables[1])
    none, every = found[0], found[1]
    assert (none["largest"], every["largest"]) == ("batch at sequence 1024",) * 2
    assert none["over none's"] == 1.0
    assert every["over none's"] == pytest.approx(every["fits"] / none["fits"])
    assert every["over none's"] > 2
    assert none["search"] == every["search"] == "complete"


def test_a_crash_ends_the_search_and_the_row_says_so(parts, rows):
    made = parts(overrule=lambda case: "crashed" if case.memory_limit_bytes else None)
    assert {row["search"] for row in rows(made.tables[1])} == {"ended by: crashed"}
    assert not any("largest" in each.text for each in made.conclusions)


def test_the_plot_sets_memory_against_time(parts):
    (plot,) = parts().plots
    assert len(plot.series) == 4
    for series in plot.series:
        assert {point.label for point in series.points} == {
            "none",
            "sqrt",
            "every-block",
            "selective",
        }
        assert [point.x for point in series.points] == sorted(point.x for point in series.points)
