"""What Peakward's own kernels, those of attention apart, cannot be combined with (`lab/ops`)."""

from peakward.records.case import ModelCase

WHOLE_BYTES = 16
"""That rows of the recomputed loss's operands come in."""
TYPE_BYTES = {"fp32": 4, "tf32": 4}
"""Of what it multiplies; 2 in other precisions."""


def fused_obstacle(case: ModelCase) -> str | None:
    """Why a kernel of Peakward's own does not go with the case's model, or None."""
    configuration, shape = case.configuration, case.model
    if configuration.rope == "fused" and shape.positions != "rope":
        return f"rope fused needs positions of rope, got {shape.positions}"
    if configuration.swiglu == "fused" and not (shape.gated and shape.activation == "silu"):
        gated = "gated" if shape.gated else "without a gate"
        return f"swiglu fused needs a gated silu, got {shape.activation} {gated}"
    if configuration.loss == "recomputed":
        row_bytes = shape.d_model * TYPE_BYTES.get(configuration.precision, 2)
        if row_bytes % WHOLE_BYTES:
            return (
                f"loss recomputed needs a d_model of whole {WHOLE_BYTES} bytes, got {shape.d_model} in "
                f"{configuration.precision}; chunked takes any"
            )
    return None
