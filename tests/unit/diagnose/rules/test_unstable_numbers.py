"""A loss that is not finite."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import abstains, case, given, judge, measurement


def failed(precision, loss):
    of = case(precision=precision)
    reason = f"expected a finite loss, got {loss} after 12 steps"
    return given(case=of, measurement=measurement(of, status="invalid", reason=reason))


@pytest.mark.parametrize(("precision", "loss"), [("fp16-mixed", "inf"), ("bf16", "nan")])
def test_in_a_narrow_type(precision, loss):
    found = judge("NUM001", failed(precision, loss))
    assert isinstance(found, Symptom)
    assert loss in found.cause and precision in found.cause


def test_fp32_is_not_narrow():
    assert judge("NUM001", failed("fp32", "nan")) is None


def test_a_finite_loss_says_nothing_about_a_run():
    of = case(precision="bf16")
    assert abstains("NUM001", given(case=of, measurement=measurement(of)))
    assert abstains("NUM001", given())


def test_what_was_measured_is_not_said_to_be_missing():
    """A live step is measured, and its settings are its own."""
    assert judge("NUM001", given(measurement=measurement(case()))).missing == ("a case",)
    assert judge("NUM001", given(case=case(precision="bf16"))).missing == ("a measurement",)
