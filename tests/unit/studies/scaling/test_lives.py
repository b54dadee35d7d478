"""Lives of models: sizes, hours and paybacks."""

from itertools import pairwise

import pytest

from peakward.models.scaling_fits import scaling_fit
from peakward.studies.scaling import lives
from peakward.studies.scaling.lives import BUDGET_FLOPS, SERVED_TOKENS, SERVING_MFUS

HOUR_FLOPS = 989e12 * 3600
"""Of an H100's peak."""


def of(fit, mfu):
    return [each for each in lives.lives() if (each.fit.name, each.serving_mfu) == (fit, mfu)]


@pytest.mark.parametrize("fit", ["besiroglu-2024", "hoffmann-2022"])
@pytest.mark.parametrize("mfu", SERVING_MFUS)
def test_the_longer_the_life_the_smaller_the_model_and_the_more_it_saves(fit, mfu):
    found = of(fit, mfu)
    assert [each.plan.served_tokens for each in found] == list(SERVED_TOKENS)
    sizes = [each.plan.training.n_parameters for each in found]
    assert sizes == sorted(sizes, reverse=True)
    assert [each.saved for each in found] == sorted(each.saved for each in found)
    assert all(0 <= each.saved < 1 for each in found)
    for each in found:
        assert each.plan.training.loss == pytest.approx(each.optimum.loss)


def test_hours_by_hand():
    last = of("besiroglu-2024", 0.1)[-1]
    plan, optimum = last.plan, last.optimum
    assert plan.relative_price == pytest.approx(4)
    trained = 6 * plan.training.n_parameters * plan.training.n_tokens / (0.4 * HOUR_FLOPS)
    served = 2 * plan.training.n_parameters * 1e13 / (0.1 * HOUR_FLOPS)
    assert last.device_hours == pytest.approx(trained + served, rel=1e-3)
    whole = 1e23 / (0.4 * HOUR_FLOPS) + 2 * optimum.n_parameters * 1e13 / (0.1 * HOUR_FLOPS)
    assert last.optimum_device_hours == pytest.approx(whole, rel=1e-3)


def test_smaller_models_take_more_tokens_and_pay_back():
    for fit in ("besiroglu-2024", "hoffmann-2022"):
        rows = [each for each in lives.overtrained() if each.fit.name == fit]
        assert [each.size for each in rows] == [1, 0.75, 0.5, 0.25]
        assert rows[0].break_even_tokens == (None, None)
        assert rows[0].plan.training_flops == pytest.approx(BUDGET_FLOPS)
        for larger, smaller in pairwise(rows[1:]):
            assert smaller.plan.n_tokens > larger.plan.n_tokens
            assert smaller.break_even_tokens[0] > larger.break_even_tokens[0]
        for each in rows[1:]:
            at_40, at_10 = each.break_even_tokens
            assert at_40 == pytest.approx(4 * at_10)


def test_a_size_out_of_reach_has_no_plan(monkeypatch):
    fit = scaling_fit("besiroglu-2024")
    optimum = next(each.optimum for each in lives.overtrained() if each.fit == fit)
    bound = lives.smallest(fit)
    monkeypatch.setattr(lives, "SIZES", (0.99 * bound / optimum.n_parameters,))
    row = lives.overtrained()[0]
    assert row.plan is None
    assert row.break_even_tokens == (None, None)
