"""Precision: the types that a step computes in, and that its parameters are held in."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from msgspec.structs import replace

from peakward.levers.axis import Axis, CodeHint, ComputeCapability, KernelSpeed, Value
from peakward.records.case import (
    Configuration,
    ConfiguredCase,
    ModelCase,
    ModuleCase,
    Precision,
)
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever
from peakward.records.linear_layers import LinearChoice

TF32 = Lever(
    name="tf32",
    summary="fp32 matmuls on tensor cores, operands rounded to 10 bits of mantissa",
    sets=(("precision", "tf32"),),
    numerics="approximate",
    device_types=("cuda",),
    vendors=("nvidia",),
    min_compute_capability=(8, 0),
)

_CASTS = ("both", "rows", "delayed_both", "delayed_rows")


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    if not isinstance(case, ModelCase) or case.model.n_experts == 1:
        return None
    if case.configuration.precision == "fp8":
        return f"precision fp8 needs a dense model, got {case.model.n_experts} experts"
    return None


def _unseen(case: ModuleCase, _name: str, value: Value) -> str | None:
    if value == "tf32":
        return "tf32 is not seen by operators: fp32 and 16-bit operands are"
    if value == "fp16-mixed" and case.workload.pass_ == "train_step":
        return "the loss scaling of fp16-mixed is not seen by operators: take bf16-mixed"
    return None


@contextmanager
def fp32_matmuls(precision: Precision) -> Iterator[None]:
    """Inside, fp32 matmuls run in tf32 if that is the precision, in full fp32 otherwise."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def said(choice: LinearChoice) -> Iterator[str]:
    """The shapes with their times, then the layers that are left, a sentence each."""
    for each in choice.layers:
        what = f"{each.tokens} × {each.inputs} → {each.outputs}" + (
            " with bias" if each.bias else ""
        )
        if each.plain_s is not None and each.fp8_s is not None:
            what += f" takes {_ms(each.plain_s)} in bf16, {_ms(each.fp8_s)} in fp8"
        yield what
    yield from choice.left


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


IN_BF16 = (
    "The module came with parameters in bf16: the baseline has them so too, and no lever of precision is "
    "tried, which need them in fp32."
)


def over_bf16(lever: Lever) -> str | None:
    """Why a lever cannot be pulled on a module whose parameters come in bf16, or None."""
    if "precision" not in dict(lever.sets):
        return None
    return "needs parameters in fp32, and they come in bf16: let them be made in fp32"


def coming_in(configuration: Configuration, *, in_bf16: bool) -> Configuration:
    """The configuration as it starts for a module whose parameters come in bf16, or do not.

    Raises:
        PeakwardError: it asks for another precision of one that does.
    """
    if not in_bf16 or configuration.precision == "bf16":
        return configuration
    if configuration.precision != "fp32":
        raise PeakwardError(
            "expected precision bf16 of a module whose parameters come in bf16, got "
            f"{configuration.precision}: leave it out, or let them be made in fp32"
        )
    return replace(configuration, precision="bf16")


AXIS = Axis(
    name="precision",
    default="fp32",
    help="fp32, tf32, bf16-mixed, fp16-mixed, bf16 or fp8.",
    levers=(
        TF32,
        Lever(
            name="bf16-mixed",
            summary="bf16 autocast over fp32 parameters",
            sets=(("precision", "bf16-mixed"),),
            numerics="approximate",
            min_compute_capability=(8, 0),
        ),
        Lever(
            name="fp16-mixed",
            summary="fp16 autocast over fp32 parameters, with a scaled loss",
            sets=(("precision", "fp16-mixed"),),
            numerics="approximate",
            device_types=("cuda",),
            min_compute_capability=(7, 0),
        ),
        Lever(
            name="bf16",
            summary="parameters, gradients and moments in bf16, no master copy",
            sets=(("precision", "bf16"),),
            numerics="approximate",
            min_compute_capability=(8, 0),
        ),
        Lever(
            name="fp8",
            summary="matmuls of linear layers in fp8 with delayed per-tensor scales, the rest as bf16-mixed",
            sets=(("precision", "fp8"),),
            numerics="approximate",
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(8, 9),
        ),
    ),
    around_call=(TF32,),
    around=fp32_matmuls,
    obstacle=_obstacle,
    hints={
        "bf16-mixed": CodeHint(
            step="is of the forward pass: give the model as model=, or call it and the loss in "
            "torch.autocast(device, torch.bfloat16) in the step",
            handle="model",
        ),
        "fp16-mixed": CodeHint(
            step="is of the forward pass: call it and the loss in torch.autocast(device, torch.float16), "
            "and step through a torch.amp.GradScaler"
        ),
        "bf16": CodeHint(
            step="is of the parameters: give the model as model=, or build it and its optimizer after "
            "model.to(torch.bfloat16), in a fresh process",
            handle="model",
        ),
        "fp8": CodeHint(
            step="is of the model's linear layers: give the model as model=, or name those that are faster "
            "to peakward.kernels.fp8_layers",
            handle="model",
        ),
    },
    unseen=_unseen,
    refused_by_capture=("fp8",),
    kernels={f"peakward.fp8_linear_{name}": KernelSpeed() for name in _CASTS},
    predicted={"cpu": ("tf32", "bf16", "bf16-mixed"), "cuda": get_args(Precision)},
)
