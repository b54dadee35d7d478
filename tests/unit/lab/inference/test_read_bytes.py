"""The bytes of weights that a pass reads."""

import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.read_bytes import weight_bytes
from peakward.lab.models import decoder


@pytest.fixture
def make(make_shape):
    def model(weights="dense", **changes):
        return decoder.build(
            make_shape(**changes),
            attention=implementation("naive"),
            weights=weights,
            device="cpu",
            dtype=torch.float32,
            seed=0,
        )

    return model


def n_bytes(tensors):
    return sum(each.nbytes for each in tensors)


def test_of_an_embedding_that_is_not_the_head_nothing_counts(make):
    model = make()
    assert weight_bytes([model]) == n_bytes(model.parameters()) - model.embedding.weight.nbytes


def test_a_tied_head_counts_as_one_of_its_own_does(make):
    tied = make(tied_head=True)
    assert tied.readout.head.weight is tied.embedding.weight
    assert weight_bytes([tied]) == weight_bytes([make()]) == n_bytes(tied.parameters())


def test_quantised_weights_count_as_they_are_stored(make):
    model = make("int8")
    stored = n_bytes(model.parameters()) + n_bytes(model.buffers())
    assert weight_bytes([model]) == stored - model.embedding.weight.nbytes


def test_what_is_shared_counts_once(make):
    model = make()
    assert weight_bytes([model, model.readout]) == weight_bytes([model])
