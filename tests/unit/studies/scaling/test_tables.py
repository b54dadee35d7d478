"""Tables of `scaling`: a cell for every column, and where the figures stand."""

import pytest

from peakward.studies.scaling import budgets, experts, lives, tables


def test_budgets(rows):
    found = rows(tables.budgets(budgets.allocations()))
    (own,) = [
        each
        for each in found
        if each["budget"] == 5.76e23 and each["rule"] == "compute-optimal (besiroglu-2024)"
    ]
    assert own["parameters"] == pytest.approx(7.22e10, rel=1e-3)
    assert own["hours, a100-sxm-80"] == pytest.approx(1_282_051, rel=1e-6)


def test_a_size_out_of_reach_says_so(rows, monkeypatch):
    monkeypatch.setattr(lives, "SIZES", (1.0, 0.01))
    found = rows(tables.overtrained(lives.overtrained()))
    assert [each["tokens"] == "out of reach" for each in found] == [False, True] * 2
    assert found[0]["training FLOPs"] == pytest.approx(1)
    assert found[1]["pays from, served at 10.0%"] is None


def test_lives(rows):
    found = rows(tables.lives(lives.lives()))
    assert len(found) == 2 * 2 * 5
    for each in found:
        assert each["saved"] == pytest.approx(1 - each["hours"] / each["hours, compute-optimal"])


def test_experts(rows):
    mixture, active, total = rows(tables.experts(experts.served()))
    assert mixture["active"] / active["parameters"] == pytest.approx(1, rel=1e-3)
    assert mixture["weights"] / total["weights"] == pytest.approx(1, rel=1e-3)
    assert mixture["bytes a step, batch 64"] > 2 * active["bytes a step, batch 64"]
