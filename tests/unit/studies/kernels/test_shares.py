"""Shares of a profile whose times are known, and of one that saw nothing."""

import msgspec
import pytest

from peakward.studies.cases import model_case
from peakward.studies.kernels.shares import PASSES_BOTH, category_ns, share_of, work_ns
from peakward.studies.scope import micro

TRAINING = model_case(micro(), 2, 64, "train_step", "cuda")


@pytest.fixture
def found(profile):
    return profile(TRAINING, 1).profile


def test_time_by_category_the_longest_first_without_the_drivers_copies(found):
    assert list(category_ns(found).items()) == [
        ("matmul", 1900),
        ("elementwise", 1800),
        ("softmax", 300),
    ]
    assert category_ns(found, ("optimizer",)) == {"elementwise": 1000}
    assert work_ns(found) == 4000


def test_shares_of_more_and_more_of_a_step(found):
    assert share_of("matmul", found, ("forward",)) == 0.5
    assert share_of("matmul", found, PASSES_BOTH) == pytest.approx(1900 / 3000)
    assert share_of("matmul", found) == 1900 / 4000
    assert share_of("attention", found) == 0


def test_no_share_of_nothing(found):
    empty = msgspec.structs.replace(found, categories=())
    assert share_of("matmul", empty) is None
    assert share_of("matmul", found, ("other",)) is None
