"""Chunks of logits are those that the operator makes."""

import msgspec
import pytest
import torch

from peakward.kernels.ops.linear_cross_entropy import workspace
from peakward.models.presets import model
from peakward.prediction.operators.linear_loss import (
    chunks,
    is_whole,
    kept,
    scratch,
    scratch_backward,
    slope,
)
from peakward.prediction.operators.plan import plan
from peakward.prediction.operators.tape import tensor
from peakward.records.case import Configuration, ModelCase, Workload

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("of_tokens", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [40, 10_000, 50_257, 128_256])
@pytest.mark.parametrize("n_tokens", [1, 700, 8_192, 100_000])
def test_they_are_as_many_and_as_large(n_tokens, vocab, dtype, of_tokens):
    width = 1024
    weight = torch.empty(vocab, width, dtype=DTYPES[dtype], device="meta")
    most = (workspace.tokens_bytes if of_tokens else workspace.workspace_bytes)(weight)
    size = weight.element_size()
    if of_tokens:
        columns = workspace.row_length(vocab)
        length = workspace.chunk_length(n_tokens, columns * size, most)
        expected = len(range(0, n_tokens, length)), length * columns * size
    else:
        length = workspace.chunk_length(vocab, n_tokens * size, most)
        columns = workspace.row_length(length)
        expected = len(range(0, vocab, length)), n_tokens * columns * size
    hidden, stated = tensor(dtype, n_tokens, width), tensor(dtype, vocab, width)
    assert chunks(hidden, stated, of_tokens=of_tokens) == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("vocab", [40, 10_000, 50_257, 128_256])
@pytest.mark.parametrize("n_tokens", [1024, 4096, 8192, 16_384])
def test_all_logits_are_there_at_once_where_the_operator_has_them(n_tokens, vocab, precision):
    width = 1024
    found = plan(
        ModelCase(
            model=msgspec.structs.replace(model("tiny"), d_model=width, vocab_size=vocab),
            workload=Workload(batch_size=n_tokens // 1024, seq_len=1024),
            configuration=Configuration(loss="chunked", precision=precision),
            device="cuda",
        )
    )
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    weight = torch.empty(vocab, width, dtype=dtype, device="meta")
    row_bytes = workspace.row_length(vocab) * weight.element_size()
    assert slope(found).n_bytes == n_tokens * row_bytes
    assert is_whole(found) == (n_tokens * row_bytes <= workspace.whole_bytes(weight))


# What the losses with the output layer in them keep and work in, by hand; that it is what a step holds is
# in `test_against_step`.

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
