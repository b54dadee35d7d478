"""What the losses with the output layer in them keep and work in, by hand; that it is what a step holds is
in `test_against_step`."""

import msgspec
import pytest

from peakward.catalogue.models import model
from peakward.prediction.memory.linear_loss import scratch, scratch_backward
from peakward.prediction.operators.linear_loss import kept
from peakward.prediction.operators.plan import plan
from peakward.records.case import Configuration, ModelCase, Workload

TOKENS, WIDTH, VOCAB = 64 * 1024, 512, 50_000


def planned(loss, precision="bf16"):
    return plan(
        ModelCase(
            model=msgspec.structs.replace(model("tiny"), d_model=WIDTH, vocab_size=VOCAB),
            workload=Workload(batch_size=64, seq_len=1024),
            configuration=Configuration(loss=loss, precision=precision),
            device="cuda",
        )
    )


def test_chunks_keep_both_gradients_and_work_in_256_mib():
    found = planned("chunked")
    assert sum(each.n_bytes for each in kept(found)) == TOKENS * WIDTH * 2 + VOCAB * WIDTH * 4 + 4
    rows, chunk = scratch(found)
    assert rows == 2 * TOKENS * 4
    assert 0.9 * 2**28 < chunk <= 2**28
    assert scratch_backward(found) == (0,)


@pytest.mark.parametrize(("precision", "tile"), [("fp32", 64), ("bf16", 256)])
def test_without_logits_sums_of_tiles_and_of_rows_are_all(precision, tile):
    found = planned("recomputed", precision)
    assert sum(each.n_bytes for each in kept(found)) == 2 * TOKENS * 4 + 4
    assert scratch(found) == (2 * TOKENS * 4, -(-VOCAB // tile) * 2 * TOKENS * 4)
    *sums, chunk = scratch_backward(found)
    assert sums == ([] if precision == "fp32" else [TOKENS * WIDTH * 4])
    assert 0.9 * 2**28 < chunk <= 2**28
