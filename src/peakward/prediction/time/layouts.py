"""Which of the reference decoder's elementwise operators read tensors with gaps.

An operator's record has shapes and types but no strides, and torch's kernels depend on them: where
all operands lie alike and without gaps they are vectorised. Said here is what follows from the
decoder: RoPE turns halves of each head, a gated feed-forward network multiplies halves of a row, and
the gradient of a sum over a token's experts is expanded.
"""

from peakward.records.model_shape import ModelShape
from peakward.records.op_graph import Operator

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
