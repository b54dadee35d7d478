"""What is looked at once: the functions of torch, roundings to formats, distances from fp64."""

import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models.decoder import build
from peakward.lab.numerics import casts, subjects
from peakward.lab.numerics.rounding import (
    FLOATS,
    SCALINGS,
    collected,
    largest_of,
    round_to,
    rounding_of,
)
from peakward.lab.quality import positions
from peakward.records.case import NumericsCase
from peakward.records.errors import PeakwardError
from peakward.studies.scope import micro


def test_hundreds_of_functions_are_called():
    names = dict(casts.functions())
    assert len(names) > 400
    assert {"torch.mm", "torch.exp", "torch.nn.functional.layer_norm"} <= names.keys()
    assert not [name for name in names if name.endswith("_")]


@pytest.mark.parametrize("name", sorted(FLOATS))
def test_a_format_keeps_its_own_numbers_and_clamps(name):
    top = largest_of(name)
    own = torch.tensor([0.0, 1.0, -1.5, top, -top], dtype=torch.float64)
    assert torch.equal(round_to(name, own), own)
    assert float(round_to(name, torch.tensor([10 * top], dtype=torch.float64))) == top


def test_tf32_has_ten_bits_of_mantissa():
    steps = torch.tensor([1.0 + 2.0**-10, 1.0 + 2.0**-12, 1.0 + 3 * 2.0**-12], dtype=torch.float64)
    assert round_to("tf32", steps).tolist() == [1.0 + 2.0**-10, 1.0, 1.0 + 2.0**-10]


def test_a_scaled_rounding_errs_by_half_a_step_at_most():
    x = torch.linspace(-3.0, 3.0, 1024, dtype=torch.float64).reshape(16, 64)
    x[0, 0] = 0.0
    whole = rounding_of("int8", "weights", "tensor", [x])
    # Uniform errors of half a step of 3/127 to either side: a step over √12.
    step = 3.0 / 127
    assert whole.error == pytest.approx(step / 12**0.5 / float(x.square().mean().sqrt()), rel=0.1)
    assert whole.beyond == 0
    assert whole.n == x.numel() - 1
    assert rounding_of("int8", "weights", "groups", [x]).error < whole.error


def test_what_lies_below_a_format_is_lost_and_what_lies_above_is_counted():
    x = torch.tensor([[1e-9, 1.0, 1e6, 0.0]], dtype=torch.float64)
    found = rounding_of("fp16", "gradients", "none", [x])
    assert (found.n, found.zeroed, found.beyond) == (3, 1 / 3, 1 / 3)
    assert (found.least, found.largest) == (1e-9, 1e6)


def test_a_model_loaded_for_inference_is_looked_at_too():
    shape = positions.shape_of("rope", layers=2, width=32, longest=8)
    model = build(
        shape,
        attention=implementation("sdpa"),
        device="cpu",
        dtype=torch.float64,
        seed=0,
    ).requires_grad_(False)
    found = collected(model, torch.arange(9)[None])
    # Of each block the packed projection, the output's, and the two of the network.
    assert {kind: len(each) for kind, each in found.items()} == {
        "activations": 8,
        "weights": 8,
        "gradients": 8,
    }
    assert all(each.any() for each in found["gradients"])


def test_drift_is_told_beside_fp32():
    case = NumericsCase(subject="drift", way="bf16", sizes=(1, 16), model=micro(), device="cpu")
    found = {each.quantity: each for each in subjects.look(case).drifts}
    assert set(found) == {"logits", "loss", "gradients"}
    assert found["logits"].fp32_error < 1e-5 < found["logits"].error <= found["logits"].bound


@pytest.mark.parametrize(
    ("subject", "way", "sizes"),
    [("types", "fp64", (1, 1)), ("rounding", "trained", (1,)), ("drift", "fp64", (1, 1))],
)
def test_what_no_look_takes_is_refused(subject, way, sizes):
    with pytest.raises(PeakwardError, match="expected"):
        subjects.look(NumericsCase(subject=subject, way=way, sizes=sizes, device="cpu"))


def test_every_format_has_a_scaling():
    assert set(SCALINGS) >= set(FLOATS)
