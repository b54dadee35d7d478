"""What Peakward's own kernels, those of attention apart, cannot be combined with (`kernels`)."""

from peakward.records.case import ModelCase

WHOLE_BYTES = 16
"""That rows of the recomputed loss's operands come in."""
TYPE_BYTES = {"fp32": 4, "tf32": 4}
"""Of what it multiplies; 2 in other precisions."""
INT4_GROUP = 128
"""Inputs that share a scale of int4:128."""


def fused_obstacle(case: ModelCase) -> str | None:
    """Why a kernel of Peakward's own does not go with the case's model, or None."""
    configuration, shape = case.configuration, case.model
    if configuration.rope == "fused" and shape.positions != "rope":
        return f"rope fused needs positions of rope, got {shape.positions}"
    if configuration.swiglu == "fused" and not (shape.gated and shape.activation == "silu"):
        gated = "gated" if shape.gated else "without a gate"
        return f"swiglu fused needs a gated silu, got {shape.activation} {gated}"
    if configuration.weights != "dense":
        return _quantised_obstacle(case)
    if configuration.loss == "recomputed":
        row_bytes = shape.d_model * TYPE_BYTES.get(configuration.precision, 2)
        if row_bytes % WHOLE_BYTES:
            return (
                f"loss recomputed needs a d_model of whole {WHOLE_BYTES} bytes, got {shape.d_model} in "
                f"{configuration.precision}; chunked takes any"
            )
    return None


def _quantised_obstacle(case: ModelCase) -> str | None:
    """No gradient passes through quantised weights, so that no loss of Peakward's own is there either."""
    shape, configuration = case.model, case.configuration
    said = f"weights {configuration.weights}"
    if case.workload.trains:
        return (
            f"{said} have no gradient: needs forward, prefill or decode, got {case.workload.pass_}"
        )
    if configuration.precision == "fp8":
        return f"{said} are widened to the type of what they multiply, got fp8: take bf16-mixed"
    if shape.n_experts > 1:
        return f"{said} are of linear layers, got a mixture of {shape.n_experts} experts"
    if configuration.weights == "int8":
        return None
    inputs = {
        "d_model": shape.d_model,
        "n_heads · head_dim": shape.n_heads * shape.head_dim,
        "d_ff": shape.d_ff,
    }
    for name, n in inputs.items():
        if n % INT4_GROUP:
            return f"{said} need {name} in whole groups of {INT4_GROUP}, got {n}; int8 takes any"
    return None
