"""Cases small enough that the whole folder takes an H200 about a minute."""

import math

import msgspec
import pytest
import torch

from peakward.lab.levers.model_step import ModelStep
from peakward.levers.optimizer import LEARNING_RATE
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.model_shape import ModelShape

SHAPE = ModelShape(
    name="tiny",
    vocab_size=320,
    n_layers=3,
    d_model=128,
    d_ff=256,
    n_heads=2,
    n_kv_heads=2,
    head_dim=64,
    max_seq_len=64,
)
ROUNDOFF = {
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "bf16-mixed": 2.0**-8,
    "fp16-mixed": 2.0**-11,
    "bf16": 2.0**-8,
    "fp8": 2.0**-4,
}
"""Half a step of the type that each precision rounds the operands of its matmuls to."""


def pytest_collection_modifyitems(items):
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def make_case():
    """make_case(shape=, pass_=, workload=, **configuration's fields) on CUDA."""

    def make(*, shape=None, pass_="train_step", workload=None, **configuration):
        return ModelCase(
            model=msgspec.structs.replace(SHAPE, **(shape or {})),
            workload=Workload(**{"batch_size": 2, "seq_len": 64, **(workload or {})}, pass_=pass_),
            configuration=Configuration(**configuration),
            device="cuda",
        )

    return make


def relative_error(found, expected) -> float:
    """‖found − expected‖ / ‖expected‖ over lists of tensors, in fp64."""
    squares = [
        (float((f.double() - e.double()).square().sum()), float(e.double().square().sum()))
        for f, e in zip(found, expected, strict=True)
    ]
    return math.sqrt(sum(s for s, _ in squares) / sum(e for _, e in squares))


@pytest.fixture
def error():
    return relative_error


def results(step) -> dict[str, list[torch.Tensor]]:
    """What the next step computes, copied."""
    step.step()
    parameters = [each.detach().clone() for each in step.model.parameters()]
    if not step.case.workload.trains:
        return {"logits": [step.output.clone()]}
    gradients = [each.clone() for each in step.gradients()]
    return {"loss": [step.output.clone()], "gradients": gradients, "parameters": parameters}


@pytest.fixture
def check(error):
    """check(step): that its first step is the plain model's in fp64, within what its type allows.

    fp32: twice the plain fp32 model's own error. Narrower: u·√(16·layers + 2), the bound of
    `lab.numerics.verify`; AdamW's first update is the rate times the gradient's sign, which may
    flip where the gradient is near zero, itself rounded about eight times on its way (both
    moments, two corrections, root, sum, quotient, product), and parameters are rounded when drawn,
    decayed and updated.
    """

    def check_(step):
        case = step.case
        plain = msgspec.structs.replace(case, configuration=Configuration())
        oracle = results(ModelStep(plain, torch.float64))
        found = results(step)
        setting = case.configuration.precision
        narrow = ROUNDOFF[setting] * math.sqrt(16 * case.model.n_layers + 2)
        base = results(ModelStep(plain, torch.float32)) if setting == "fp32" else None
        for quantity in oracle.keys() - {"parameters"}:
            least = 2.0**-23 if quantity == "loss" else 0.0
            bound = 2 * error(base[quantity], oracle[quantity]) + least if base else narrow
            assert error(found[quantity], oracle[quantity]) <= bound, quantity
        if case.workload.pass_ == "train_step":
            held = ROUNDOFF["bf16"] if setting == "bf16" else ROUNDOFF["fp32"]
            for mine, wanted in zip(found["parameters"], oracle["parameters"], strict=True):
                slack = (2 + 8 * held) * LEARNING_RATE + 4 * held * wanted.abs()
                assert ((mine.double() - wanted).abs() <= slack).all()

    return check_
