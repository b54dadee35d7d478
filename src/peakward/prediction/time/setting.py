"""The settings of a step that are in no operator's record and yet decide how long it takes."""

from collections.abc import Callable
from typing import NamedTuple

from peakward.hardware.attention_backend import HOPPER, ComputeCapability
from peakward.levers import kv_cache
from peakward.prediction.operators.grouped_linear import group_sizes
from peakward.prediction.operators.op_graph import fuses_by_rules
from peakward.records.case import ModelCase
from peakward.records.model_shape import ModelShape
from peakward.records.op_graph import ModuleCapture, Operator


class Setting(NamedTuple):
    """The settings of a whole step."""

    n_rows: frozenset[int]
    """Rows of linear layers' products in one forward pass: tokens, and those of each expert of several."""
    tf32: bool
    """Whether fp32 products are."""
    scattered_share: Callable[[Operator], float]
    """The share of an elementwise operator's calls whose operands differ in layout or have gaps."""
    heads_are_scattered: bool
    """Whether heads come out of attention each laid out in its own way."""
    counts_steps_on_host: bool
    """Whether the optimiser's step counts are no tensors of the device."""
    captured: bool
    """Whether the step is one CUDA graph."""
    window: int | None
    """The window of attention, which Peakward's own kernels keep to."""
    for_hopper: bool
    """Whether Peakward's own kernels of attention are."""
    fusion_is_derived: bool = False
    """Whether which operators a compiler fuses is told by rules, and was seen in no profile."""


def of_case(case: ModelCase, *, compute_capability: ComputeCapability = HOPPER) -> Setting:
    """The reference decoder's, by its code."""
    configuration = case.configuration
    foreach = configuration.optimizer == "adamw-foreach"
    n_tokens = kv_cache.tokens_computed(case)
    of_experts = group_sizes(n_tokens * case.model.n_active_experts, case.model.n_experts)
    return Setting(
        n_rows=frozenset({n_tokens, *(size for size, _ in of_experts)}),
        tf32=configuration.precision == "tf32",
        scattered_share=lambda operator: scattered_share(operator, case.model),
        heads_are_scattered=configuration.attention != "naive",
        counts_steps_on_host=foreach and not configuration.cuda_graphs,
        captured=configuration.cuda_graphs,
        window=case.model.window,
        for_hopper=configuration.attention == "flash-hopper",
        fusion_is_derived=fuses_by_rules(case, compute_capability=compute_capability),
    )


def of_module(capture: ModuleCapture) -> Setting:
    """A captured module's: its operators' records say themselves how their operands lie."""
    return Setting(
        n_rows=frozenset({capture.n_rows}),
        tf32=False,
        scattered_share=lambda operator: 1.0 if operator.scattered else 0.0,
        heads_are_scattered=True,
        counts_steps_on_host=True,
        captured=False,
        window=None,
        for_hopper=False,
    )


def of_compiled_module(capture: ModuleCapture) -> Setting:
    """A captured module's with compiled parts."""
    return of_module(capture)._replace(fusion_is_derived=True)


# Which of the reference decoder's elementwise operators read tensors with gaps.
#
# An operator's record has shapes and types but no strides, and torch's kernels depend on them: where
# all operands lie alike and without gaps they are vectorised. Said here is what follows from the
# decoder: RoPE turns halves of each head, a gated feed-forward network multiplies halves of a row, and
# the gradient of a sum over a token's experts is expanded.

_HALVES_OF_ROWS = {
    "silu",
    "silu_backward",
    "gelu",
    "gelu_backward",
    "relu",
    "threshold_backward",
}


def scattered_share(operator: Operator, shape: ModelShape) -> float:
    """The share of an elementwise operator's calls in which layouts differ: 0, ½ or 1."""
    if _broadcasts(operator):
        return 1.0
    name, module = operator.name.removeprefix("aten."), operator.module or ""
    if module.endswith(".attention"):
        return 1.0 if shape.positions == "rope" and name in ("mul", "neg") else 0.0
    if shape.n_experts > 1 and name == "mul" and _is_by_token(operator):
        return 1.0 if operator.bytes_read < sum(each.n_bytes for each in operator.inputs) else 0.0
    if not (module.endswith(".ff") and shape.gated):
        return 0.0
    if name in _HALVES_OF_ROWS:
        return 1.0
    if name == "mul":  # Backward: by the other half, and by the activation, which is whole.
        return 1.0 if operator.phase == "forward" else 0.5
    return 0.0


def _is_by_token(operator: Operator) -> bool:
    """Whether it is of the gradient of what experts gave: (tokens, active experts, d_model)."""
    in_mixture = operator.phase == "backward" and (operator.module or "").endswith(".ff")
    return in_mixture and {len(each.shape) for each in operator.inputs} == {3}


def _broadcasts(operator: Operator) -> bool:
    """Also over a tensor of one element on the device, such as a scale of fp8: torch keeps its vectorised
    kernels for operands that lie alike and for Python's numbers, which are no operands here."""
    return len({each.shape for each in operator.inputs}) > 1
