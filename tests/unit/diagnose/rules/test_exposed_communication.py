"""Communication that nothing hides."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import MS, PRODUCTS, abstains, given, judge, kernel, of_host, profile


def reducing(ms, hidden_ms=0.0):
    return profile(
        PRODUCTS,
        kernel("ncclDevKernel_AllReduce", ms, "communication", phase="backward"),
        communication_ns=round(ms * MS),
        communication_under_compute_ns=round(hidden_ms * MS),
    )


@pytest.mark.parametrize(("ms", "hidden"), [(10, 0), (100, 40)])
def test_what_ran_alone(ms, hidden):
    found = judge("COMM001", given(reducing(ms, hidden)))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx((ms - hidden) * 1e-3)


def test_silent_where_hidden_or_none():
    assert judge("COMM001", given(reducing(100, 99.5))) is None
    assert judge("COMM001", given(profile())) is None


def test_the_host_has_none():
    assert abstains("COMM001", given(of_host()))
