"""The operators that a loss scale adds to a step of fp16: torch's `GradScaler`, where no infinity is found.

After Micikevicius et al. 2018, "Mixed precision training". The scale is a tensor of one element
on the GPU. A step that finds an infinity leaves the optimiser's update out; that is not stated.
"""

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import DOUBLE, FLOAT, INT32, Tape, tensor
from peakward.prediction.operators.weights import every_weight

_SCALAR = tensor(FLOAT)


def scale(tape: Tape) -> None:
    """The loss times the scale, and the gradient of that."""
    for _ in ("loss", "gradient"):
        tape.pointwise("mul", _SCALAR, _SCALAR)


def unscale(tape: Tape, plan: Plan) -> None:
    """All gradients by the reciprocal of the scale, and whether any is infinite."""
    tape.cast(tape.pointwise("reciprocal", tape.cast(_SCALAR, DOUBLE)), FLOAT)
    tape.made("full", FLOAT)
    for _ in ("reciprocal", "found infinity"):
        tape.call("_to_copy", (_SCALAR,), (_SCALAR,))  # For the device of the gradients.
    gradients = every_weight(plan)
    inputs, outputs = (*gradients, _SCALAR, _SCALAR), (*gradients, _SCALAR)
    tape.call("_amp_foreach_non_finite_check_and_unscale_", inputs, outputs)


def update(tape: Tape) -> None:
    """Updates the scale and the steps since it grew, by whether an infinity was found."""
    since = tensor(INT32)
    tape.call("_amp_update_scale_", (_SCALAR, since, _SCALAR), (_SCALAR, since))
