"""FLOPs and bytes against counts made one by one."""

import pytest

from peakward.records.case import OperatorCase
from peakward.studies.attention_parts.work import work


def case(precision="fp32", **fields):
    sizes = {"batch_size": 2, "n_heads": 3, "seq_len": 5, "head_dim": 7} | fields
    return OperatorCase(**sizes, precision=precision, device="cpu")


def test_every_multiply_add_counts_two():
    found = work(case())
    one_head = sum(2 for _ in range(5) for _ in range(5) for _ in range(7))
    assert found.scores.flops == found.values.flops == 2 * 3 * one_head
    assert found.softmax.flops == 2 * 3 * 5 * 25


@pytest.mark.parametrize(("precision", "item"), [("fp32", 4), ("bf16", 2)])
def test_every_input_and_output_is_counted_once(precision, item):
    found = work(case(precision))
    queries = keys = values = result = 2 * 3 * 5 * 7
    scores = weights = 2 * 3 * 5 * 5
    assert found.scores.n_bytes == (queries + keys + scores) * item
    assert found.softmax.n_bytes == (scores + weights) * 4
    assert (found.casts is None) == (item == 4)
    if found.casts is not None:
        assert found.casts.n_bytes == (scores + weights) * (item + 4)
    assert found.values.n_bytes == (weights + values + result) * item


def test_the_ratio_depends_on_the_width_of_a_head_alone():
    assert work(case(seq_len=64, head_dim=64)).over_products == pytest.approx(5 / (4 * 64))
    assert work(case(seq_len=512, head_dim=64)).over_products == pytest.approx(5 / (4 * 64))
