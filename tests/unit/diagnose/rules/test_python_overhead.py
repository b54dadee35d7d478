"""Python between the launches."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import abstains, given, judge, path, profile


@pytest.mark.parametrize(("ms", "host"), [(30, 70), (300, 95)])
def test_where_most_of_the_path_is_python(ms, host):
    slow = profile(idle={"host_bound": ms}, path=path(host=host, operator=100 - host))
    found = judge("HOST003", given(slow))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3 * host / 100)


@pytest.mark.parametrize(("ms", "host"), [(300, 50), (5, 95), (0, 0)])
def test_silent_where_it_is_dispatch_or_little(ms, host):
    slow = profile(idle={"host_bound": ms}, path=path(host=host, operator=100 - host))
    assert judge("HOST003", given(slow)) is None


def test_without_a_path():
    assert abstains("HOST003", given(profile(idle={"host_bound": 100})))
