"""An error that is not finite is stored as such, and read again."""

import math

import pytest

from peakward.records import codec
from peakward.records.lever import NumericsError


def error(candidate, bound=1e-3):
    return NumericsError(quantity="loss", candidate_error=candidate, base_error=1e-7, bound=bound)


@pytest.mark.parametrize("candidate", [math.nan, math.inf])
def test_an_error_that_is_not_finite_is_broken_and_comes_back(candidate):
    found = error(candidate)
    assert found.is_broken and found.share_of_bound == math.inf
    assert codec.as_read_back(found) == found and found.candidate_error is None


def test_a_bound_that_is_not_finite_holds_nothing():
    assert error(1e-4, bound=math.nan).is_broken


@pytest.mark.parametrize(("candidate", "is_broken"), [(9e-4, False), (1e-3, False), (2e-3, True)])
def test_an_error_beyond_its_bound_is_broken(candidate, is_broken):
    assert error(candidate).is_broken is is_broken
