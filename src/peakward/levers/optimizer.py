"""The optimiser: AdamW tensor by tensor, over lists of tensors, or fused; its moments in fewer bits."""

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, get_args

from peakward.levers.axis import (
    Axis,
    Code,
    CodeHint,
    ComputeCapability,
    KernelSpeed,
    Needs,
    Undo,
    seen,
)
from peakward.records.case import ConfiguredCase, DeviceType, Optimizer
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

LEARNING_RATE = 1e-4
"""Small enough for the 48-layer size to stay finite over hundreds of steps on random tokens."""
OWN: dict[Optimizer, str] = {
    "adamw-triton": "as parameters",
    "adamw-bf16-states": "bf16",
    "adamw-8bit-states": "8bit",
}
"""The values that `peakward.kernels.TritonAdamW` carries out, each with its argument `states`."""
BLOCK = 256
"""Elements that share an exponent of one byte in 8-bit states (`kernels.ops.adamw.stored`)."""


def adamw(
    model: "torch.nn.Module", implementation: Optimizer, *, capturable: bool
) -> "torch.optim.Optimizer":
    """AdamW (Loshchilov & Hutter 2019) over all parameters.

    `capturable` keeps the step count on the device, as a CUDA graph needs (our own always does).
    """
    import torch

    from peakward.kernels.ops.adamw.api import TritonAdamW

    if (states := OWN.get(implementation)) is not None:
        return TritonAdamW(model.parameters(), lr=LEARNING_RATE, states=states)  # type: ignore[arg-type]
    return torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        foreach=implementation == "adamw-foreach",
        fused=implementation == "adamw-fused",
        capturable=capturable,
    )


def moment_sizes(value: Optimizer, n_elements: int, parameter_bytes: int) -> tuple[int, ...]:
    """Bytes of each tensor that holds one of the two moments of a parameter of so many elements; 8-bit codes
    come with the exponents of their blocks."""
    if value == "adamw-8bit-states":
        return n_elements, -(-n_elements // BLOCK)
    return (n_elements * (2 if value == "adamw-bf16-states" else parameter_bytes),)


def _class(value: Optimizer) -> str:
    """Our own optimiser of that value, for a sentence."""
    states = f'(…, states="{OWN[value]}")'
    return "peakward.kernels.TritonAdamW" + ("" if value == "adamw-triton" else states)


def _obstacle(case: ConfiguredCase, _capability: ComputeCapability | None) -> str | None:
    """16-bit parameters have 16-bit moments already."""
    chosen, precision = case.configuration.optimizer, case.configuration.precision
    if OWN.get(chosen, "as parameters") != "as parameters" and precision == "bf16":
        return (
            f"optimizer {chosen} needs fp32 parameters, got precision bf16: use bf16-mixed or fp8"
        )
    return None


def _function(value: Optimizer) -> "Callable[..., torch.optim.Optimizer]":
    return lambda model, *, capturable: adamw(model, value, capturable=capturable)


_FLAGS = {
    "adamw-loop": {"foreach": False, "fused": False},
    "adamw-foreach": {"foreach": True, "fused": False},
    "adamw-fused": {"foreach": False, "fused": True},
}


def _to_optimizer(optimizer: "torch.optim.Optimizer", value: Optimizer) -> Undo:
    """Sets the flags of every group, and again after `load_state_dict`, which takes those of the state.

    A fused update keeps its counts on the parameters' device, so the counts move (torch 2.13,
    torch/optim/adam.py).
    """
    import torch

    flags = _FLAGS.get(value)
    if flags is None:
        raise PeakwardError(
            f"expected a form that an optimizer can take in place ({', '.join(_FLAGS)}), got {value}: it is "
            f"another optimizer; make {_class(value)} in its place in your own code"
        )
    if "fused" not in optimizer.defaults:
        raise PeakwardError(
            f"expected an optimizer of torch with the argument fused, for {value}, got "
            f"{type(optimizer).__name__}: make another one in your own code"
        )
    before = [{name: place.get(name) for name in flags} for place in _places(optimizer)]
    scales = getattr(optimizer, "_step_supports_amp_scaling", None)

    def put(*_: object) -> None:
        for place in _places(optimizer):
            place.update(flags)
        if flags["fused"]:
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
            for parameter, state in optimizer.state.items():
                if isinstance(state.get("step"), torch.Tensor):
                    state["step"] = state["step"].to(parameter.device, torch.float32)

    hook = optimizer.register_load_state_dict_post_hook(put)
    put()

    def undo() -> None:
        hook.remove()
        # A group that was added meanwhile gets what the defaults had, which stand first.
        for place, held in zip_longest(_places(optimizer), before, fillvalue=before[0]):
            place.update(held)
        if scales is None:
            vars(optimizer).pop("_step_supports_amp_scaling", None)
        for group in optimizer.param_groups:
            on_device = group["fused"] or group.get("capturable")
            for state in (
                optimizer.state[each] for each in group["params"] if each in optimizer.state
            ):
                if isinstance(state.get("step"), torch.Tensor) and not on_device:
                    state["step"] = state["step"].cpu()

    return undo


def form_of(optimizer: "torch.optim.Optimizer", device: DeviceType) -> Optimizer:
    """The form of the update that the first group's flags choose; where they leave it open, torch takes
    lists of tensors on a GPU and each by itself on a CPU."""
    group = optimizer.param_groups[0]
    if group.get("fused"):
        return "adamw-fused"
    over_lists = group.get("foreach")
    if over_lists is None:
        over_lists = device == "cuda"
    return "adamw-foreach" if over_lists else "adamw-loop"


def is_adamw(optimizer: "torch.optim.Optimizer") -> bool:
    """Whether the optimizer is torch's AdamW, which this axis has forms of."""
    import torch

    return isinstance(optimizer, torch.optim.AdamW)


def _places(optimizer: "torch.optim.Optimizer") -> list[dict[str, Any]]:
    """The defaults and every group; `load_state_dict` makes the groups anew."""
    return [optimizer.defaults, *optimizer.param_groups]


def _of_torch(argument: str) -> Code:
    return Code(once=(f"optimizer = torch.optim.AdamW(model.parameters(), lr=lr, {argument})",))


_OF_STATES = {
    "peakward.adamw_bf16": KernelSpeed(factor=1.10),
    "peakward.adamw_8bit": KernelSpeed(factor=1.54),
}
"""On an H200 they move their bytes at 91 and 65% of a copy's rate (results/2026-11-27-h200-optimizer-states).
Why 8 bits reach so little was not profiled."""


def _own_hint(value: Optimizer) -> CodeHint:
    return CodeHint(
        step=f"is another optimizer: make {_class(value)} in its place, its state built anew"
    )


def _own_code(value: Optimizer) -> Code:
    states = "" if value == "adamw-triton" else f', states="{OWN[value]}"'
    return Code(
        imports=("from peakward.kernels import TritonAdamW",),
        once=(f"optimizer = TritonAdamW(model.parameters(), lr=lr{states})",),
    )


AXIS = Axis(
    name="optimizer",
    default="adamw-foreach",
    help="adamw-loop, adamw-foreach, adamw-fused, adamw-triton, adamw-bf16-states or adamw-8bit-states.",
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
        Lever(
            name="bf16-states",
            summary="AdamW's moments of fp32 parameters in bf16, rounded at random without bias",
            sets=(("optimizer", "adamw-bf16-states"),),
            numerics="approximate",
            passes=("train_step",),
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(8, 0),
        ),
        Lever(
            name="8bit-states",
            summary="AdamW's moments of fp32 parameters in 8 bits by blocks, rounded at random",
            sets=(("optimizer", "adamw-8bit-states"),),
            numerics="approximate",
            passes=("train_step",),
            device_types=("cuda",),
            vendors=("nvidia",),
            min_compute_capability=(8, 0),
        ),
    ),
    others={"adamw-loop": Needs(passes=("train_step",))},
    # A live script's loop stayed in its compiled step for want of that: 51.6 ms, where 34.5 were mended by
    # hand (H200).
    no_faster=("adamw-loop",),
    obstacle=_obstacle,
    part="optimizer",
    unseen=seen,
    function=_function,
    to_optimizer=_to_optimizer,
    hints={
        "adamw-fused": CodeHint(
            step="is the optimizer's: give it as optimizer=, or make it with fused=True, its state built "
            "anew",
            handle="optimizer",
        ),
        **{value: _own_hint(value) for value in OWN},
    },
    code={
        "adamw-loop": _of_torch("foreach=False"),
        "adamw-foreach": _of_torch("foreach=True"),
        "adamw-fused": _of_torch("fused=True"),
        **{value: _own_code(value) for value in OWN},
    },
    leaves_alone=("forward", "backward"),
    kernels=_OF_STATES,
    predicted={"cpu": ("adamw-fused", "adamw-loop"), "cuda": get_args(Optimizer)},
)
