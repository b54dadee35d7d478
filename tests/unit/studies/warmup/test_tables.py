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


def test_what_the_first_step_did_is_told_as_seconds_and_shares(tables):
    (small, large) = tables()["What the first step of a fresh process did"]
    assert (small["model"], large["model"]) == ("small", "2.7B")
    assert (small["first step, profiled"], small["module load"]) == (2.0, 1.5)
    assert small["share of the step"] == 0.75
    assert (small["allocation"], small["page faults"]) == (None, 1234)


def test_the_plot_shows_the_steps_of_the_longest_sequence(setting, gathered):
    here = setting()
    (plot,) = warmup.parts(gathered(warmup, here), here).plots
    assert [series.name for series in plot.series] == ["small", "2.7B"]
    first, second = plot.series[0].points[:2]
    assert first.y == pytest.approx(91 * second.y)
