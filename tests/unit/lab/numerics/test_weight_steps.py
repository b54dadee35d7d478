"""Weights rounded at random err as quantised ones do."""

import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models import decoder
from peakward.lab.models.layers import KINDS
from peakward.lab.numerics.verify import perturb


@pytest.fixture
def build(make_shape):
    shape = make_shape(d_model=128, d_ff=256, n_heads=2, n_kv_heads=2, head_dim=64, n_layers=2)

    def make(weights="dense"):
        how = implementation("naive")
        return decoder.build(
            shape, attention=how, weights=weights, device="cpu", dtype=torch.float64, seed=0
        )

    return make


@pytest.mark.parametrize("weights", KINDS)
def test_each_matrix_errs_by_as_much_as_its_quantised_form(build, weights):
    """Root mean squares of thousands of uniform errors; of the head and the norms there are none."""
    dense, drawn, quantised = build(), build(), build(weights)
    perturb(drawn, weights, seed=0)
    blocks = quantised.blocks.named_modules()
    rounded = {name: each for name, each in blocks if isinstance(each, KINDS[weights])}
    assert len(rounded) == 8
    for name, each in rounded.items():
        before = dense.blocks.get_submodule(name).weight.detach()
        expected = float((each.dequantised(torch.float64) - before).norm())
        error = drawn.blocks.get_submodule(name).weight.detach() - before
        assert float(error.norm()) == pytest.approx(expected, rel=0.05)
        assert abs(float(error.mean())) < 0.05 * float(error.std())
    for name in ("embedding", "readout.head", "readout.norm", "blocks.0.ff_norm"):
        assert torch.equal(drawn.get_submodule(name).weight, dense.get_submodule(name).weight)


def test_a_seed_gives_it_again(build):
    one, other, another = build(), build(), build()
    perturb(one, "int8", seed=1)
    perturb(other, "int8", seed=1)
    perturb(another, "int8", seed=2)
    weight = "blocks.1.ff.down.weight"
    found = [dict(each.named_parameters())[weight] for each in (one, other, another)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
