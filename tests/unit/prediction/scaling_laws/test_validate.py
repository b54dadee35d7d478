"""The bounds themselves."""

from math import inf, nan

import pytest

from peakward.prediction.scaling_laws.validate import refuse_if_negative, refuse_unless_positive
from peakward.records.errors import PeakwardError


def test_positive_amounts_pass_and_nothing_is_no_negative_amount() -> None:
    refuse_unless_positive(1e-300, "x")
    refuse_if_negative(0.0, "x")


@pytest.mark.parametrize("amount", [0.0, -1.0, nan, inf])
def test_what_is_not_positive_is_refused(amount: float) -> None:
    with pytest.raises(PeakwardError, match=r"expected x above 0, got .*: give a finite number"):
        refuse_unless_positive(amount, "x")


@pytest.mark.parametrize("amount", [-1e-300, nan, inf])
def test_what_is_negative_is_refused(amount: float) -> None:
    with pytest.raises(PeakwardError, match=r"expected x of at least 0, got .*: give a finite"):
        refuse_if_negative(amount, "x")
