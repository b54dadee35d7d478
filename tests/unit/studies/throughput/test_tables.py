"""The tables and plots of `throughput`."""

import pytest

from peakward.studies import throughput
from peakward.studies.peaks import CATEGORIES, OTHER


@pytest.fixture
def parts(setting, gathered):
    def make(**options):
        here = setting()
        return throughput.parts(gathered(throughput, here, **options), here)

    return make


def test_a_row_for_every_cell_and_a_column_for_every_limit(parts, rows):
    speeds, memory, _ = parts().tables
    assert len(speeds.rows) == 24
    assert {"24.0 GiB", "40.0 GiB", "80.0 GiB"} <= {column.name for column in memory.columns}


def test_out_of_memory_keeps_its_row(parts, rows):
    speeds, memory, _ = parts(overrule=lambda case: "oom").tables
    assert {row["status"] for row in rows(speeds)} == {"oom"}
    assert {row["throughput"] for row in rows(speeds)} == {None}
    assert {row["24.0 GiB"] for row in rows(memory)} == {"oom"}
    assert {row["peak, no limit"] for row in rows(memory)} == {"oom"}


def test_categories_of_every_way_add_up_to_its_predicted_peak(parts, rows):
    *_, held = parts().tables
    for row in rows(held):
        assert row["predicted peak"] == sum(row[name] for name in (*CATEGORIES, OTHER))


def test_the_plots_hold_the_cases_that_ran(parts):
    by_size, by_length = parts(
        overrule=lambda case: "oom" if case.configuration.precision == "bf16" else None
    ).plots
    assert [each.name for each in by_size.series] == [
        "bf16-mixed, forward",
        "bf16-mixed, train_step",
    ]
    assert {each.name for each in by_length.series} == {
        f"{size}, {precision}" for size in ("small", "2.7B") for precision in ("fp32", "bf16-mixed")
    }
