"""One operator near its roof."""

import pytest

from peakward.diagnose.symptom import Symptom

from .made import abstains, judge, operator, profile, signals


def dominated(share, roof_share):
    return signals(
        profile(operators=(operator("aten::mm", "4096×4096, 4096×4096", 100 * share, roof_share),))
    )


@pytest.mark.parametrize(("share", "roof"), [(0.4, 0.7), (1.0, 0.9)])
def test_its_share(share, roof):
    found = judge("PREC002", dominated(share, roof))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(0.1 * share)
    assert found.evidence[0].value == roof


@pytest.mark.parametrize(("share", "roof"), [(0.1, 0.9), (0.9, 0.3)])
def test_silent_where_small_or_far_from_it(share, roof):
    assert judge("PREC002", dominated(share, roof)) is None


def test_without_shapes():
    assert abstains("PREC002", signals(profile()))
    assert abstains("PREC002", dominated(0.9, None))
