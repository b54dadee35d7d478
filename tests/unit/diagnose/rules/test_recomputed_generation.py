"""Tokens that are computed again and again."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import PRODUCTS, abstains, given, judge, kernel, operator, profile


def growing(n, step=1, *, backward=False):
    rows = [16 + step * at for at in range(n)]
    kernels = (PRODUCTS, kernel("mm", 1, phase="backward")) if backward else (PRODUCTS,)
    operators = tuple(operator("aten::mm", f"{row}×64, 64×256", 90 / n) for row in rows)
    return given(profile(*kernels, operators=operators))


@pytest.mark.parametrize(("n", "step"), [(8, 1), (40, 4)])
def test_lengths_that_follow_one_another(n, step):
    found = judge("GEN001", growing(n, step))
    assert isinstance(found, Symptom)
    assert [each.value for each in found.evidence] == [n, 16, 16 + step * (n - 1)]
    assert 0 < sum(found.parts.values()) < 0.09
    assert not found.is_all


def test_silent_of_a_few_lengths_of_training_and_of_a_cache():
    assert judge("GEN001", growing(5)) is None
    assert judge("GEN001", growing(40, backward=True)) is None
    cached = profile(operators=(operator("aten::mm", "1×64, 64×256", 90),) * 40)
    assert judge("GEN001", given(cached)) is None


def test_without_shapes():
    assert abstains("GEN001", given(profile()))
