"""Plots of `scaling`: a line for each rule, life and model."""

from peakward.studies.scaling import budgets, lives, plots


def test_a_line_a_rule():
    plot = plots.sizes(budgets.allocations())
    assert [each.name for each in plot.series] == [
        "compute-optimal (besiroglu-2024)",
        "compute-optimal (hoffmann-2022)",
        "20 tokens a parameter",
    ]
    assert {len(each.points) for each in plot.series} == {len(budgets.BUDGETS_FLOPS)}


def test_a_line_a_fit_and_mfu():
    plot = plots.overtraining(lives.lives())
    assert [each.name for each in plot.series][:2] == [
        "besiroglu-2024, served at 40%",
        "besiroglu-2024, served at 10%",
    ]
    for each in plot.series:
        assert each.points[-1].y > 2 * each.points[0].y


def test_the_mixture_goes_from_its_active_size_to_its_total_one():
    mixture, active, total = plots.traffic().series
    share = [
        (m.y - a.y) / (t.y - a.y)
        for m, a, t in zip(mixture.points, active.points, total.points, strict=True)
    ]
    assert share[0] < 0.01
    assert share[-1] > 0.99
    assert all(0 <= each < 1.01 for each in share)
