"""What the losses with the output layer in them keep and work in, by hand; that it is what a step holds is
in `test_against_step`."""

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.memory.linear_loss import scratch, scratch_backward
from peakward.prediction.operators.linear_loss import kept
from peakward.prediction.operators.plan import plan
from peakward.records.case import Configuration, ModelCase, Workload

TOKENS, WIDTH, VOCAB = 64 * 1024, 512, 50_000


def planned(loss, precision="bf16", batch_size=64):
    return plan(
        ModelCase(
            model=msgspec.structs.replace(model("tiny"), d_model=WIDTH, vocab_size=VOCAB),
            workload=Workload(batch_size=batch_size, seq_len=1024),
            configuration=Configuration(loss=loss, precision=precision),
            device="cuda",
        )
    )


def test_chunks_keep_both_gradients_and_work_on_4096_tokens():
    found = planned("chunked")
    assert sum(each.n_bytes for each in kept(found)) == TOKENS * WIDTH * 2 + VOCAB * WIDTH * 4 + 4
    rows, chunk = scratch(found)
    assert (rows, chunk) == (2 * TOKENS * 4, 4096 * VOCAB * 2)
    assert scratch_backward(found) == (0,)


def test_of_few_tokens_the_gradient_of_all_logits_is_kept():
    found = planned("chunked", batch_size=4)
    tokens = 4 * 1024
    n_bytes = tokens * WIDTH * 2 + tokens * VOCAB * 2 + 4
    assert sum(each.n_bytes for each in kept(found)) == n_bytes
    assert (scratch(found), scratch_backward(found)) == ((2 * tokens * 4, 0), (0,))


@pytest.mark.parametrize(("precision", "tile"), [("fp32", 64), ("bf16", 256)])
def test_without_logits_sums_of_tiles_and_of_rows_are_all(precision, tile):
    found = planned("recomputed", precision)
    assert sum(each.n_bytes for each in kept(found)) == 2 * TOKENS * 4 + 4
    assert scratch(found) == (2 * TOKENS * 4, -(-VOCAB // tile) * 2 * TOKENS * 4)
    *sums, chunk = scratch_backward(found)
    assert sums == ([] if precision == "fp32" else [TOKENS * WIDTH * 4])
    assert 0.9 * 2**28 < chunk <= 2**28
