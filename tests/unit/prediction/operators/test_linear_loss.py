"""Chunks of logits are those that the operator makes."""

import pytest
import torch

from peakward.lab.ops.linear_cross_entropy import workspace
from peakward.prediction.operators.linear_loss import chunks
from peakward.prediction.operators.tape import tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize("of_tokens", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [40, 10_000, 50_257, 128_256])
@pytest.mark.parametrize("n_tokens", [1, 700, 8_192, 100_000])
def test_they_are_as_many_and_as_large(n_tokens, vocab, dtype, of_tokens):
    width = 1024
    weight = torch.empty(vocab, width, dtype=DTYPES[dtype], device="meta")
    most, size = workspace.workspace_bytes(weight), weight.element_size()
    if of_tokens:
        columns = workspace.round_up(vocab, workspace.COLUMNS)
        length = workspace.chunk_length(n_tokens, columns * size, most)
        expected = len(range(0, n_tokens, length)), length * columns * size
    else:
        length = workspace.chunk_length(vocab, n_tokens * size, most)
        columns = workspace.round_up(length, workspace.COLUMNS)
        expected = len(range(0, vocab, length)), n_tokens * columns * size
    hidden, stated = tensor(dtype, n_tokens, width), tensor(dtype, vocab, width)
    assert chunks(hidden, stated, of_tokens=of_tokens) == expected
