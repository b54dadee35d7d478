"""Budgets split by each rule, against figures worked out by hand."""

import pytest

from peakward.studies.scaling.budgets import (
    BUDGETS_FLOPS,
    CHINCHILLA_FLOPS,
    RULES,
    allocations,
)


def of(budget):
    return [each for each in allocations() if each.budget_flops == budget]


def test_every_budget_by_every_rule():
    found = allocations()
    assert len(found) == len(BUDGETS_FLOPS) * len(RULES) == 9 * 3
    for each in found:
        assert each.plan.training_flops == pytest.approx(each.budget_flops)
        assert 6 * each.plan.n_parameters * each.plan.n_tokens == pytest.approx(each.budget_flops)
    assert [each.is_optimum for each in found[:3]] == [True, True, False]


def test_chinchilla_s_budget_by_hand():
    besiroglu, hoffmann, thumb = of(CHINCHILLA_FLOPS)
    # (0.3478·482.01 / (0.3658·2085.43))^(1/0.7136) = 0.2198^1.4013 = 0.1197, times
    # (9.6e22)^(0.3658/0.7136) = 6.03e11.
    assert besiroglu.plan.n_parameters == pytest.approx(0.1197 * 6.03e11, rel=2e-3)
    assert besiroglu.plan.tokens_per_parameter == pytest.approx(18.4, abs=0.1)
    # (0.34·406.4 / (0.28·410.7))^(1/0.62) = 1.2016^1.6129 = 1.3447, times (9.6e22)^(0.28/0.62).
    assert hoffmann.plan.n_parameters == pytest.approx(1.3447 * 2.397e10, rel=2e-3)
    assert hoffmann.plan.tokens_per_parameter == pytest.approx(92.6, abs=0.2)
    # √(5.76e23 / 120) = 6.928e10 parameters, and twenty times as many tokens.
    assert thumb.plan.n_parameters == pytest.approx(6.928e10, rel=1e-3)
    assert thumb.plan.n_tokens == pytest.approx(1.3856e12, rel=1e-3)


def test_device_hours_by_hand():
    for each in of(CHINCHILLA_FLOPS):
        h100, a100 = each.device_hours
        # 5.76e23 / (0.4 · 989e12) / 3600, and of 312e12.
        assert h100 == pytest.approx(404_449, rel=1e-3)
        assert a100 == pytest.approx(1_282_051, rel=1e-6)


def test_the_optimum_of_a_fit_has_its_least_loss():
    for budget in BUDGETS_FLOPS:
        besiroglu, _, thumb = of(budget)
        assert thumb.plan.fit == besiroglu.plan.fit
        assert besiroglu.plan.loss < thumb.plan.loss
