"""Study `scaling`: budgets, lives and experts against figures worked out by hand."""

from itertools import pairwise

import pytest

from peakward.studies import scaling
from peakward.studies.readings import Readings
from peakward.studies.scaling import STUDY, experts

HOUR_FLOPS = 989e12 * 3600
"""The FLOPs of an H100's hour at its peak."""
ROUTERS = 32 * 8 * 4096
"""Parameters of the mixture that the dense models lack."""


@pytest.fixture
def parts(setting):
    return STUDY.parts(Readings(), setting())


@pytest.fixture
def tables(parts, rows):
    return [rows(each) for each in parts.tables]


@pytest.fixture
def told(parts, figures):
    """The figures of the sentences that begin so."""
    return lambda start: [figures(c) for c in parts.conclusions if c.text.startswith(start)]


def test_nothing_is_planned(setting):
    assert STUDY.plan(setting()) == ()


def test_chinchilla_s_budget_by_hand(tables):
    found = [row for row in tables[0] if row["budget"] == scaling.CHINCHILLA_FLOPS]
    besiroglu, hoffmann, thumb = found
    # (0.3478·482.01 / (0.3658·2085.43))^(1/0.7136) = 0.2198^1.4013 = 0.1197, times
    # (9.6e22)^(0.3658/0.7136) = 6.03e11.
    assert besiroglu["parameters"] == pytest.approx(0.1197 * 6.03e11, rel=2e-3)
    assert besiroglu["tokens a parameter"] == pytest.approx(18.4, abs=0.1)
    # (0.34·406.4 / (0.28·410.7))^(1/0.62) = 1.2016^1.6129 = 1.3447, times (9.6e22)^(0.28/0.62).
    assert hoffmann["parameters"] == pytest.approx(1.3447 * 2.397e10, rel=2e-3)
    # √(5.76e23 / 120) = 6.928e10 parameters, and twenty times as many tokens.
    assert thumb["parameters"] == pytest.approx(6.928e10, rel=1e-3)
    assert thumb["tokens"] == pytest.approx(1.3856e12, rel=1e-3)
    for each in found:
        # 5.76e23 / (0.4 · 989e12) / 3600, and of 312e12.
        assert each["hours, h100-sxm-80"] == pytest.approx(404_449, rel=1e-3)
        assert each["hours, a100-sxm-80"] == pytest.approx(1_282_051, rel=1e-6)


def test_every_rule_spends_its_budget_and_the_optimum_has_the_least_loss(tables):
    assert len(tables[0]) == 9 * 3
    for row in tables[0]:
        assert 6 * row["parameters"] * row["tokens"] == pytest.approx(row["budget"])
    for besiroglu, _, thumb in zip(*(iter(tables[0]),) * 3, strict=True):
        assert besiroglu["loss, nats a token"] < thumb["loss, nats a token"]


def test_growth_has_the_fits_own_exponents(told):
    besiroglu, hoffmann = (each for each in told("By") if "exponent of the tokens" in each)
    # β / (α + β), of each fit as printed.
    assert besiroglu["exponent of the parameters"] == pytest.approx(0.3658 / 0.7136)
    assert hoffmann["exponent of the parameters"] == pytest.approx(0.28 / 0.62)
    assert hoffmann["exponent of the tokens"] == pytest.approx(0.34 / 0.62)


def test_growth_of_two_budgets_is_not_told(setting, monkeypatch):
    monkeypatch.setattr(scaling, "BUDGETS_FLOPS", (1e18, scaling.CHINCHILLA_FLOPS))
    said = STUDY.parts(Readings(), setting()).conclusions
    assert said[0].text.startswith("Chinchilla's budget")


def test_the_size_of_hoffmann_s_fit_is_explained(told):
    (known,) = told("The 32.2 B parameters by hoffmann-2022 are 46.0% of the 70.0 B that")
    # Equation 4 with the constants as printed: G = (αA / (βB))^(1 / (α + β)), N = G·(C / 6)^a.
    scale = (0.34 * 406.4 / (0.28 * 410.7)) ** (1 / 0.62)
    by_hand = scale * (5.76e23 / 6) ** (0.28 / 0.62)
    assert known["parameters, as printed"] == pytest.approx(by_hand)
    scale = (0.3478 * 482.01 / (0.3658 * 2085.43)) ** (1 / 0.7136)
    by_hand = scale * (5.76e23 / 6) ** (0.3658 / 0.7136)
    assert known["parameters, fitted anew"] == pytest.approx(by_hand)
    # Figure 4 of the paper, drawn with the exponents before rounding, names 40 B for this budget.
    assert known["parameters, unrounded exponents"] == pytest.approx(40e9, rel=0.01)
    assert known["parameters by approach 2"] == 63e9


def test_smaller_models_take_more_tokens_and_pay_back(tables, told):
    for fit in ("besiroglu-2024", "hoffmann-2022"):
        first, *others = [row for row in tables[1] if row["fit"] == fit]
        assert first["training FLOPs"] == pytest.approx(1)
        assert first["pays from, served at 10.0%"] is None
        for larger, smaller in pairwise(others):
            assert smaller["tokens"] > larger["tokens"]
        for each in others:
            dear = each["pays from, served at 10.0%"]
            assert each["pays from, served at 40.0%"] == pytest.approx(4 * dear)
    known = next(each for each in told("By") if "pays from, served at 10.0%" in each)
    assert known["size"] == 0.25
    assert known["pays from, served at 10.0%"] == tables[1][3]["pays from, served at 10.0%"]
    assert known["training FLOPs"] == tables[1][3]["training FLOPs"]


def test_a_size_out_of_reach_says_so_and_is_not_told(setting, rows, monkeypatch):
    monkeypatch.setattr(scaling, "SIZES", (1.0, 0.01))
    made = STUDY.parts(Readings(), setting())
    found = rows(made.tables[1])
    assert [row["tokens"] == "out of reach" for row in found] == [False, True] * 2
    assert found[1]["pays from, served at 10.0%"] is None
    assert not any("no data reach it" in each.text for each in made.conclusions)


def test_the_longer_the_life_the_smaller_the_model_and_the_more_it_saves(tables, told):
    assert len(tables[2]) == 2 * 2 * 5
    for found in zip(*(iter(tables[2]),) * 5, strict=True):
        sizes = [row["parameters"] for row in found]
        assert sizes == sorted(sizes, reverse=True)
        assert [row["saved"] for row in found] == sorted(row["saved"] for row in found)
    for row in tables[2]:
        assert 0 <= row["saved"] < 1
        assert row["saved"] == pytest.approx(1 - row["hours"] / row["hours, compute-optimal"])
    long = [each for each in told("By") if "saved" in each and each["served tokens"] == 1e13]
    assert len(long) == 2
    for known in long:
        assert known["size"] < 0.5
        assert known["tokens"] > 2


def test_hours_by_hand(tables):
    last = tables[2][9]
    assert (last["fit"], last["serving MFU"]) == ("besiroglu-2024", 0.1)
    trained = 6 * last["parameters"] * last["tokens"] / (0.4 * HOUR_FLOPS)
    served = 2 * last["parameters"] * 1e13 / (0.1 * HOUR_FLOPS)
    assert last["hours"] == pytest.approx(trained + served, rel=1e-3)
    whole = 1e23 / (0.4 * HOUR_FLOPS) + 2 * tables[1][0]["parameters"] * 1e13 / (0.1 * HOUR_FLOPS)
    assert last["hours, compute-optimal"] == pytest.approx(whole, rel=1e-3)


def test_the_mixture_and_its_dense_peers_by_hand(tables):
    mixture, active, total = tables[3]
    assert mixture["parameters"] == 46_702_792_704
    assert total["parameters"] == total["active"] == mixture["parameters"] - ROUTERS
    assert active["parameters"] == mixture["active"] - ROUTERS
    # All matrices but the embedding; attention of 4096/2 keys, 4·4096 a pair and layer.
    matrices = active["parameters"] - 32_000 * 4096 - 65 * 4096
    assert active["training, a token"] == pytest.approx(3 * (2 * matrices + 32 * 4 * 4096 * 2048))
    # The mean decode step attends to 1025 … 1279 positions.
    decoding = 2 * matrices + 32 * 4 * 4096 * 1152
    assert active["decoding, a token"] == pytest.approx(decoding)
    assert mixture["decoding, a token"] == pytest.approx(decoding + 2 * ROUTERS)
    assert mixture["weights"] == 2 * mixture["parameters"]
    cache = 64 * 1279 * 2 * 32 * 8 * 128 * 2
    assert mixture["with cache, batch 64"] == mixture["weights"] + cache


def test_a_step_of_one_token_reads_the_active_experts_a_large_batch_all(tables):
    mixture, active, total = tables[3]
    one, many = "bytes a step, batch 1", "bytes a step, batch 64"
    assert mixture[one] - active[one] == pytest.approx(2 * ROUTERS)
    untouched = 32 * 8 * 0.75**64 * 3 * 4096 * 14_336 * 2
    assert mixture[many] == pytest.approx(total[many] + 2 * ROUTERS - untouched)
    for row in tables[3]:
        assert row["least step, batch 64"] == pytest.approx(row[many] / 4.8e12)


def test_the_mixture_against_both(told):
    active, total = told("mixtral-8x7b against")
    assert active["FLOPs a token"] == pytest.approx(1, rel=1e-3)
    assert active["weights"] == pytest.approx(46.70 / 12.88, rel=1e-3)
    assert total["FLOPs a token"] == pytest.approx(0.278, abs=1e-3)
    assert total["weights"] == pytest.approx(1, rel=1e-3)
    assert total["least time of a step"] == pytest.approx(1, rel=1e-3)


def test_plots_have_a_line_a_rule_a_life_and_a_model(parts):
    sizes, overtraining, traffic = parts.plots
    assert [each.name for each in sizes.series] == [
        "compute-optimal (besiroglu-2024)",
        "compute-optimal (hoffmann-2022)",
        "20 tokens a parameter",
    ]
    assert overtraining.series[1].name == "besiroglu-2024, served at 10%"
    assert all(each.points[-1].y > 2 * each.points[0].y for each in overtraining.series)
    assert [len(each.points) for each in traffic.series] == [len(experts.EVERY_BATCH)] * 3
    # The mixture goes from its active size to its total one.
    share = [
        (m.y - a.y) / (t.y - a.y)
        for m, a, t in zip(*(each.points for each in traffic.series), strict=True)
    ]
    assert share[0] < 0.01
    assert 0.99 < share[-1] < 1.01
