"""The optimiser: AdamW tensor by tensor, over lists of tensors, or fused."""

from typing import TYPE_CHECKING, get_args

from peakward.levers.axis import Axis, Code, CodeHint, Needs, Unseen, Value, not_seen
from peakward.records.case import ModuleCase, Optimizer
from peakward.records.lever import Lever

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

LEARNING_RATE = 1e-4
"""Small enough for the 48-layer size to stay finite over hundreds of steps on random tokens."""
_OVER_LISTS: Unseen = not_seen("a capture steps with AdamW over lists")


def adamw(
    model: "torch.nn.Module", implementation: Optimizer, *, capturable: bool
) -> "torch.optim.Optimizer":
    """AdamW (Loshchilov & Hutter 2019) over all parameters.

    `capturable` keeps the step count on the device, as a CUDA graph needs (our own always does).
    """
    import torch

    from peakward.kernels.ops.adamw.api import TritonAdamW

    if implementation == "adamw-triton":
        return TritonAdamW(model.parameters(), lr=LEARNING_RATE)
    return torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        foreach=implementation == "adamw-foreach",
        fused=implementation == "adamw-fused",
        capturable=capturable,
    )


def _function(value: Optimizer) -> "Callable[..., torch.optim.Optimizer]":
    return lambda model, *, capturable: adamw(model, value, capturable=capturable)


def _unseen(case: ModuleCase, name: str, value: Value) -> str | None:
    return _OVER_LISTS(case, name, value) if case.workload.pass_ == "train_step" else None


def _of_torch(argument: str) -> Code:
    return Code(once=(f"optimizer = torch.optim.AdamW(model.parameters(), lr=lr, {argument})",))


AXIS = Axis(
    name="optimizer",
    default="adamw-foreach",
    help="adamw-loop, adamw-foreach, adamw-fused or adamw-triton.",
    levers=(
        Lever(
            name="fused-optimizer",
            summary="AdamW in one fused kernel",
            sets=(("optimizer", "adamw-fused"),),
            numerics="reordered",
            usual_speedup=1.04,
            passes=("train_step",),
        ),
        Lever(
            name="triton-optimizer",
            summary="AdamW in Peakward's own kernel, each stream of memory moved once",
            sets=(("optimizer", "adamw-triton"),),
            numerics="reordered",
            usual_speedup=1.05,
            passes=("train_step",),
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(8, 0),
        ),
    ),
    others={"adamw-loop": Needs(passes=("train_step",))},
    part="optimizer",
    function=_function,
    hints={
        "adamw-fused": CodeHint(
            step="is the optimizer's: make it with fused=True, its state built anew"
        ),
        "adamw-triton": CodeHint(
            step="is another optimizer: make peakward.kernels.TritonAdamW in its place, its state built anew"
        ),
    },
    code={
        "adamw-loop": _of_torch("foreach=False"),
        "adamw-foreach": _of_torch("foreach=True"),
        "adamw-fused": _of_torch("fused=True"),
        "adamw-triton": Code(
            imports=("from peakward.kernels import TritonAdamW",),
            once=("optimizer = TritonAdamW(model.parameters(), lr=lr)",),
        ),
    },
    leaves_alone=("forward", "backward"),
    unseen=_unseen,
    predicted={"cpu": ("adamw-fused", "adamw-loop"), "cuda": get_args(Optimizer)},
)
