"""What `scaling` says, number by number."""

import pytest

from peakward.studies.scaling import budgets, conclusions, experts, lives

ALLOCATIONS = budgets.allocations()


def test_growth_has_the_fits_own_exponents(figures):
    besiroglu, hoffmann = (figures(each) for each in conclusions.growth(ALLOCATIONS))
    # β / (α + β), of each fit as printed.
    assert besiroglu["exponent of the parameters"] == pytest.approx(0.3658 / 0.7136)
    assert hoffmann["exponent of the parameters"] == pytest.approx(0.28 / 0.62)
    assert hoffmann["exponent of the tokens"] == pytest.approx(0.34 / 0.62)


def test_growth_of_too_few_budgets_is_not_said():
    assert conclusions.growth(ALLOCATIONS[:6]) == ()


def test_chinchilla_s_budget(figures):
    said = conclusions.chinchilla(ALLOCATIONS)
    assert said.text.startswith(
        "Chinchilla's budget of 576 ZFLOP is that of 72.2 B parameters on 1.33 T tokens by "
        "besiroglu-2024, 32.2 B parameters on 2.98 T tokens by hoffmann-2022, 69.3 B parameters on "
        "1.39 T tokens at 20 tokens a parameter; at an MFU of 40.0% in bf16 it takes 404,000 hours"
    )
    hours = figures(said)
    assert hours["hours, NVIDIA A100 SXM 80 GB"] == pytest.approx(1_282_051, rel=1e-6)


def test_the_size_of_hoffmann_s_fit_is_explained(figures):
    said = conclusions.disagreement()
    known = figures(said)
    # Equation 4 with the constants as printed, by hand: G = (αA / (βB))^(1 / (α + β)), N = G·(C / 6)^a.
    scale = (0.34 * 406.4 / (0.28 * 410.7)) ** (1 / 0.62)
    by_hand = scale * (5.76e23 / 6) ** (0.28 / 0.62)
    assert known["parameters, as printed"] == pytest.approx(by_hand)
    scale = (0.3478 * 482.01 / (0.3658 * 2085.43)) ** (1 / 0.7136)
    by_hand = scale * (5.76e23 / 6) ** (0.3658 / 0.7136)
    assert known["parameters, fitted anew"] == pytest.approx(by_hand)
    # Figure 4 of the paper, drawn with the exponents before rounding, names 40 B for this budget.
    assert known["parameters, unrounded exponents"] == pytest.approx(40e9, rel=0.01)
    assert said.text.startswith(
        "The 32.2 B parameters by hoffmann-2022 are 46.0% of the 70.0 B that"
    )
    assert "approaches 1 (67.0 B) and 2 (63.0 B)" in said.text


def test_a_smaller_model_pays_back(figures):
    first, _ = conclusions.smaller(lives.overtrained())
    known = figures(first)
    row = lives.overtrained()[3]
    assert known["parameters over the optimum's"] == row.size == 0.25
    assert known["break-even"] == row.break_even_tokens[1]
    flops = known["training FLOPs over the optimum's"]
    assert flops == pytest.approx(row.plan.training_flops / 1e23)


def test_out_of_reach_of_every_smaller_size_nothing_is_said(monkeypatch):
    monkeypatch.setattr(lives, "SIZES", (1.0, 0.01))
    assert conclusions.smaller(lives.overtrained()) == ()


def test_a_long_life_asks_for_a_small_model(figures):
    said = conclusions.whole_lives(lives.lives())
    for each in said:
        known = figures(each)
        assert known["parameters over the optimum's"] < 0.5
        assert known["tokens over the optimum's"] > 2
    assert "saves 60.6% of the device-hours" in said[0].text


def test_the_mixture_against_both(figures):
    against_active, against_total = map(figures, conclusions.experts(experts.served()))
    assert against_active["FLOPs a token"] == pytest.approx(1, rel=1e-3)
    assert against_active["weights"] == pytest.approx(46.70 / 12.88, rel=1e-3)
    assert against_total["FLOPs a token"] == pytest.approx(0.278, abs=1e-3)
    assert against_total["weights"] == pytest.approx(1, rel=1e-3)
    assert against_total["least time of a step"] == pytest.approx(1, rel=1e-3)
