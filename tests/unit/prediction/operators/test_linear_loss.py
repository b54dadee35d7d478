"""Chunks of logits are those that the operator makes."""

import msgspec
import pytest
import torch

from peakward.kernels.ops.linear_cross_entropy import workspace
from peakward.models.presets import model
from peakward.prediction.operators.linear_loss import chunks, is_whole, slope
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
