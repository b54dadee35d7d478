"""The published coefficients, and that both find what their authors say."""

import pytest

from peakward.models.scaling_fits import SCALING_FITS, scaling_fit
from peakward.records.errors import PeakwardError


def test_the_fits_are_selected_by_name() -> None:
    assert {each.name for each in SCALING_FITS} == {"hoffmann-2022", "besiroglu-2024"}
    for each in SCALING_FITS:
        assert scaling_fit(each.name) is each
    with pytest.raises(PeakwardError, match="expected a scaling fit, got 'hofmann': there are"):
        scaling_fit("hofmann")


@pytest.mark.parametrize(
    # As each paper prints them: Hoffmann's a = 0.46, b = 0.54 (table 2) are of unrounded exponents.
    ("name", "size_exponent", "within"),
    [("hoffmann-2022", 0.46, 0.01), ("besiroglu-2024", 0.5126, 5e-5)],
)
def test_the_exponents_give_the_printed_growth_of_the_size_with_the_budget(
    name: str, size_exponent: float, within: float
) -> None:
    fit = scaling_fit(name)
    growth = fit.token_exponent / (fit.parameter_exponent + fit.token_exponent)
    assert growth == pytest.approx(size_exponent, abs=within)
