"""What a mixture of experts cannot be combined with."""

from peakward.hardware.compute_capability import spell
from peakward.records.case import ModelCase

IN_ONE_KERNEL = ("bf16-mixed", "bf16")
"""Precisions in which torch multiplies all experts in one kernel; in others the host waits, each
time, to learn how many tokens each expert has."""
CAPABILITIES = (9, 10)
"""Major ones that have that kernel."""
WIDTHS = 8
"""Its rows come in pieces of 16 bytes: the widths must divide by so many elements."""


def experts_obstacle(case: ModelCase, *, compute_capability: tuple[int, int] | None) -> str | None:
    """Why the case's settings and its experts do not go together, or None. A dense case has none.

    Args:
        compute_capability: of the device; None where it is not known, and then no obstacle.
    """
    shape, precision = case.model, case.configuration.precision
    if shape.n_experts == 1:
        return None
    if precision == "fp8":
        return f"precision fp8 needs a dense model, got {shape.n_experts} experts"
    if not case.configuration.cuda_graphs:
        return None
    captured = "cuda-graphs on needs, for experts that the host need not wait for,"
    if precision not in IN_ONE_KERNEL:
        return f"{captured} the precision {' or '.join(IN_ONE_KERNEL)}, got {precision}"
    if shape.d_model % WIDTHS or shape.d_ff % WIDTHS:
        widths = f"d_model {shape.d_model} and d_ff {shape.d_ff}"
        return f"{captured} widths that divide by {WIDTHS}, got {widths}"
    if compute_capability is not None and compute_capability[0] not in CAPABILITIES:
        majors = " or ".join(str(major) for major in CAPABILITIES)
        return f"{captured} compute capability {majors}, got {spell(compute_capability)}"
    return None
