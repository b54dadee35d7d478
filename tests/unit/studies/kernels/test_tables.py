"""The tables of times and shares."""

import pytest

from peakward.studies import kernels
from peakward.studies.kernels import tables
from peakward.studies.kernels.grid import read


@pytest.fixture
def cells(setting, gathered):
    here = setting()
    return read(gathered(kernels, here), here)


def test_the_profiled_step_stands_beside_the_plain_one(cells, rows):
    found = rows(tables.times(cells, "kernel"))
    assert len(found) == 12
    for row in found:
        assert row["over the plain"] == pytest.approx(1.25)
        assert row["profiled step"] == pytest.approx(1.25 * row["plain step"])
    assert found[0]["kernels in a step"] == pytest.approx(1000e-9)
    assert found[1]["kernels in a step"] == pytest.approx(4000e-9)


def test_a_case_without_profile_keeps_its_row(setting, gathered, rows):
    here = setting()
    cells = read(gathered(kernels, here, overrule=lambda case: "oom"), here)
    found = rows(tables.times(cells, "kernel"))
    assert {row["status"] for row in found} == {"oom"}
    assert {row["profiled step"] for row in found} == {None}
    assert tables.matmul_shares(cells, "kernel").rows == ()
    assert tables.categories(cells, "kernel").rows == ()


def test_matmuls_in_inference_and_in_more_and_more_of_a_step(cells, rows):
    for row in rows(tables.matmul_shares(cells, "kernel")):
        shares = [
            row[name] for name in ("inference", "forward", "forward + backward", "whole step")
        ]
        assert shares == pytest.approx([0.5, 0.5, 1900 / 3000, 0.475])


def test_categories_of_a_case_add_up(cells, rows):
    found = rows(tables.categories(cells, "kernel"))
    training = [row for row in found if row["workload"] == "4 × 128 train_step"][:3]
    assert [row["category"] for row in training] == ["matmul", "elementwise", "softmax"]
    assert sum(row["share"] for row in training) == pytest.approx(1)
    assert training[0]["backward"] == pytest.approx(1400e-9)
    assert training[2]["backward"] is None


def test_on_a_cpu_operators_are_spoken_of(cells):
    assert tables.categories(cells, "operator").title == "Operators by category and phase"
    assert "operator" in tables.matmul_shares(cells, "operator").title
