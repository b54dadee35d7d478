"""The tables and the plot of `data-loading`."""

import pytest


def test_each_fed_step_stands_against_its_resident_one(made, rows):
    resident, fed, texts, samplers = made().tables
    assert len(resident.rows) == 4
    assert len(fed.rows) == 32
    by_way = {
        (row["model"], row["workload"], row["text"], row["workers"], row["copies"]): row
        for row in rows(fed)
    }
    row = by_way["small", "4 × 128 train_step", "python-topics by bytes on the fly", 0, "pageable"]
    assert row["over resident"] == pytest.approx(1.6)
    assert row["waiting, of the step"] == pytest.approx(0.3125)
    assert row["GPU idle"] == row["host waits"]
    assert row["host copies"] == pytest.approx(row["host waits"] / 5)
    # Text × size × length × workers: of several ways to the device one row.
    assert len(texts.rows) == 2 * 4 * 2
    assert [row["also read by another"] for row in rows(samplers)] == [0, 1000]


def test_a_cpu_has_no_idle_gpu(made, rows):
    assert {row["GPU idle"] for row in rows(made("cpu", "small").tables[1])} == {None}


def test_the_plot_has_a_line_a_model_and_way(made):
    (plot,) = made().plots
    assert plot.title == "Waiting for data, sequence 128"
    assert len(plot.series) == 2 * 2 * 2
    assert all([point.x for point in each.points] == [0, 8] for each in plot.series)


def test_failed_cases_keep_their_rows(made, rows):
    parts = made(overrule=lambda case: "oom" if case.workload.data else None)
    assert {row["status"] for row in rows(parts.tables[1])} == {"oom"}
    assert parts.tables[2].rows == ()
