"""A tiny model to vary, and one thread: on tensors this small more of them only get in the way."""

import msgspec
import pytest
import torch

from peakward.records.model_shape import ModelShape

TINY = ModelShape(
    name="tiny",
    vocab_size=61,
    n_layers=2,
    d_model=32,
    d_ff=48,
    n_heads=4,
    n_kv_heads=4,
    head_dim=8,
    max_seq_len=32,
)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_shape():
    """tiny_shape(**changes): the tiny shape with these fields changed."""

    def make(**changes: object) -> ModelShape:
        return msgspec.structs.replace(TINY, **changes)

    return make
