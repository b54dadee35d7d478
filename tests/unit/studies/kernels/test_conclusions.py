"""What is said rests on the profiles, and nothing is said without them."""

import pytest

from peakward.studies import kernels
from peakward.studies.kernels import conclusions
from peakward.studies.kernels.grid import longest, read


@pytest.fixture
def cells(setting, gathered):
    here = setting()
    return read(gathered(kernels, here), here)


def test_matmuls_of_each_size_at_its_longest(cells, figures):
    small, large = conclusions.matmuls(cells, "kernel")
    assert small.text == (
        "Matmuls take 50.0% of kernel time in inference, 63.3% in forward and backward, and 47.5% "
        "in a whole training step of small 4 × 1024."
    )
    assert "2.7B" in large.text
    assert figures(small)["share of matmuls, step"] == 0.475
    ids = {name for each in small.evidence for name in each.from_ids}
    profiled = {cell.profile.id for cell in cells if cell.case.workload.seq_len == 1024}
    assert ids < profiled


def test_the_least_and_the_most(cells, figures):
    (said,) = conclusions.spread(cells, "operator")
    assert figures(said) == {
        "cases": 12,
        "least share of matmuls": 0.475,
        "largest share of matmuls": 0.5,
    }
    assert "operator time" in said.text
    assert conclusions.spread(cells[:1], "kernel") == ()


def test_what_comes_after_matmuls(cells, figures):
    inference, training, *_ = conclusions.after_matmuls(longest(cells), "kernel")
    assert "goes to softmax kernels, 30.0%" in inference.text
    assert (
        "elementwise_kernel in the phase optimizer: 25.0% in 6 instances over 3 steps."
        in training.text
    )
    assert figures(training)["share of elementwise"] == 0.45


def test_what_profiling_costs_rests_on_both(cells, figures):
    (said,) = conclusions.profiling(cells)
    assert list(figures(said).values()) == pytest.approx([1.25, 1.25])
    (cell,) = [each for each in cells if each.profile.id in said.evidence[0].from_ids]
    assert cell.measurement.id in said.evidence[0].from_ids


def test_nothing_is_said_of_what_was_not_profiled(setting, gathered):
    here = setting()
    readings = gathered(kernels, here, overrule=lambda case: "oom")
    assert kernels.parts(readings, here).conclusions == ()
