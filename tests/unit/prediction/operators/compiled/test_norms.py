"""When a norm's two gradients are taken in one kernel, at the edges of Inductor's rule."""

import pytest

from peakward.models.presets import model
from peakward.prediction.operators.compiled.norms import mixes, partial_sums
from peakward.prediction.operators.plan import plan
from peakward.records.case import ModelCase, Workload


def planned(batch_size, seq_len, name):
    workload = Workload(batch_size=batch_size, seq_len=seq_len)
    return plan(ModelCase(model=model(name), workload=workload, device="cuda"))


@pytest.mark.parametrize(
    ("batch_size", "seq_len", "name", "expected"),
    [
        (4, 1024, "medium", False),  # 4096 rows of 1024 are 2²², fewer elements than 5 · 2²⁰.
        (4, 1024, "large", True),  # 4096 rows of 1280: as many.
        (4, 1023, "large", False),
        (5, 819, "large", False),  # 4095 rows.
        (4, 1024, "2.7B", False),  # 4096 rows, of 2560: fewer than twice as many.
        (5, 1024, "2.7B", True),
    ],
)
def test_one_kernel_where_rows_are_many(batch_size, seq_len, name, expected):
    assert mixes(planned(batch_size, seq_len, name)) == expected


def test_parts_are_rounded_up():
    assert partial_sums(planned(1, 129, "small"), 128).shape == (2, 768)
