"""The verdict on outputs, by class."""

import pytest
import torch

from peakward.lab.numerics.judge import Subject, judge


def of_losses(base, candidate):
    def outputs(value):
        return lambda: {"loss": (torch.tensor(value, dtype=torch.float64),)}

    return Subject(outputs(1.0), outputs(base), outputs(candidate), roundoff=2.0**-24, n_layers=1)


@pytest.mark.parametrize(("roundings", "verdict"), [(3.5, "holds"), (4.5, "violated")])
def test_a_loss_may_err_by_the_roundings_that_any_way_to_it_passes(roundings, verdict):
    """Though the base agrees with the oracle by luck."""
    found = judge(of_losses(1.0, 1.0 + roundings * 2.0**-24), "reordered")
    assert found.verdict == verdict


def test_a_loss_may_err_twice_as_much_as_its_base():
    assert judge(of_losses(1.0 + 2.0**-10, 1.0 + 2.0**-9), "reordered").verdict == "holds"
    assert judge(of_losses(1.0 + 2.0**-10, 1.0 + 2.0**-8), "reordered").verdict == "violated"
