"""The tables of `warmup`."""

import pytest

from peakward.studies import warmup


@pytest.fixture
def tables(setting, gathered, rows):
    def make(**options):
        here = setting()
        made = warmup.parts(gathered(warmup, here, **options), here).tables
        return {table.title: rows(table) for table in made}

    return make


def test_totals_hold_warm_up_and_timed_steps(tables):
    found = tables()["Steps after 0, 1 and 5 warm-up steps"]
    warm = [row for row in found if row["warm-up steps"] == 5]
    assert len(found) == 24
    for row in warm:
        assert row["total"] == pytest.approx(15 * row["median"])
        assert row["warm-up"] == pytest.approx(5 * row["median"])


def test_out_of_memory_keeps_its_row(tables):
    found = tables(overrule=lambda case: "oom" if case.model.name == "2.7B" else None)
    out = [row for row in found["Steps after 0, 1 and 5 warm-up steps"] if row["model"] == "2.7B"]
    assert len(out) == 12
    assert {(row["status"], row["total"], row["mean"]) for row in out} == {("oom", None, None)}


def test_what_the_first_step_took_longer_for_sums_to_it(tables):
    (small, large) = tables()["What the first step of a fresh process took beyond a steady one"]
    assert (small["model"], large["model"]) == ("small", "2.7B")
    assert small["beyond a steady one"] == pytest.approx(small["first step"] * 90 / 91)
    assert (small["module loading"], small["first step, profiled"]) == (1.5, 2.0)
    assert small["everything else"] == pytest.approx(small["beyond a steady one"] - 1.5)
    assert small["share of everything else"] == pytest.approx(
        small["everything else"] / small["beyond a steady one"]
    )
    assert small["autotuning"] is small["memory allocation"] is None, "not in the record"
    assert small["page faults"] == 1234


def test_the_plot_shows_the_steps_of_the_longest_sequence(setting, gathered):
    here = setting()
    (plot,) = warmup.parts(gathered(warmup, here), here).plots
    assert [series.name for series in plot.series] == ["small", "2.7B"]
    first, second = plot.series[0].points[:2]
    assert first.y == pytest.approx(91 * second.y)
