"""What is trained side by side: a precision of the step, and the type of AdamW's moments."""

import argparse
from typing import NamedTuple

import torch
from torch import Tensor, nn

from loss_curves import moments
from loss_curves.moments import MOMENTS, NEAREST, STATES, Make
from peakward.kernels.ops.attention.api import implementation
from peakward.kernels.ops.fp8_modules.api import scales_of
from peakward.lab.levers import fp8_layers, precision
from peakward.lab.models.decoder import Decoder, build
from peakward.records.model_shape import ModelShape

UNSCALED = "-unscaled"
"""Ends the name of fp16-mixed without loss scaling."""
PRECISIONS = ("fp32", "tf32", "bf16-mixed", "fp16-mixed", f"fp16-mixed{UNSCALED}", "bf16", "fp8")


class Arm(NamedTuple):
    """One way to train. Its name is precision:moments."""

    precision: str
    moments: str

    @property
    def name(self) -> str:
        return f"{self.precision}:{self.moments}"

    @property
    def computes_in(self) -> str:
        """The precision of the step, whether its loss is scaled or not."""
        return self.precision.removesuffix(UNSCALED)

    def make(self, device: str) -> Make:
        """Makes its optimiser; parameters in bf16 have moments of their own type."""
        if self.precision == "bf16":
            return moments.own(device)
        return moments.maker(self.moments, device)

    def scaler(self, device: str) -> torch.amp.GradScaler:
        """torch's dynamic loss scaling; disabled where the precision needs none."""
        return torch.amp.GradScaler(device, enabled=self.precision == "fp16-mixed")


DEFAULT = {
    "cpu": tuple(Arm("fp32", each) for each in (*STATES, NEAREST)),
    "cuda": tuple(
        Arm(computes_in, each) for computes_in in ("bf16-mixed", "fp8") for each in STATES
    ),
}


def parsed(name: str) -> Arm:
    """An arm by its name.

    Raises:
        argparse.ArgumentTypeError: there is none.
    """
    computes_in, _, kept = name.partition(":")
    if computes_in not in PRECISIONS or kept not in MOMENTS:
        raise argparse.ArgumentTypeError(
            f"expected precision:moments of {', '.join(PRECISIONS)} and {', '.join(MOMENTS)}, got {name!r}"
        )
    if computes_in == "bf16" and kept != "bf16":
        raise argparse.ArgumentTypeError(
            f"expected bf16:bf16, got {name!r}: parameters in bf16 have their moments in bf16"
        )
    return Arm(computes_in, kept)


class ReferenceFp8Linear(nn.Linear):
    """A linear layer with the roundings of fp8 by torch's own operators, for a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        return fp8_layers.rounded_by_torch(self, input)


def model_for(computes_in: str, shape: ModelShape, device: str) -> Decoder:
    """The reference decoder for a precision. In fp8 all linear layers of its blocks are; the head's 257 bytes
    are no multiple of 16, so that no kernel takes it."""
    model = build(
        shape,
        attention=implementation("sdpa"),
        device=device,
        dtype=precision.parameter_dtype(computes_in),
        seed=0,
    )
    if computes_in == "fp8" and device == "cuda":
        precision.apply_fp8(model)
    elif computes_in == "fp8":
        for each in model.blocks.modules():
            if type(each) is nn.Linear:
                each.__class__ = ReferenceFp8Linear
    return model


def begin(model: Decoder, seed: int) -> None:
    """Gives a model a seed's weights; its delayed scales have seen nothing."""
    model.initialise(seed)
    for each in model.modules():
        if isinstance(each, precision.Fp8Linear):
            for history in scales_of(each):
                history.zero_()
