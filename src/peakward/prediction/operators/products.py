"""How the linear layers of the blocks compute: in the compute type, in fp8, or with quantised weights."""

from collections.abc import Callable
from typing import NamedTuple

from peakward.prediction.operators import fp8_linear, linear, quantised_linear
from peakward.prediction.operators.linear import Linear, SavedLinear
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.writer import Value, Writer


class Products(NamedTuple):
    """The functions of `linear`, or those of another kind of layer."""

    forward: Callable[[Writer, Linear, Value], tuple[SavedLinear, Value]]
    until_saved: Callable[[Writer, Linear, Value], SavedLinear]
    """As far as the layer is recomputed where it is the last of its run."""
    backward: Callable[[Writer, SavedLinear, Value, str], Value]


_PLAIN = Products(linear.forward, linear.casts, linear.backward)
_FP8 = Products(fp8_linear.forward, fp8_linear.until_saved, fp8_linear.backward)
_QUANTISED = _PLAIN._replace(forward=quantised_linear.forward)
"""Products of passes without gradients, which have only a forward product."""


def products(plan: Plan) -> Products:
    """The products of the blocks; the output layer's are always plain."""
    if plan.quantised is not None:
        return _QUANTISED
    return _FP8 if plan.precision == "fp8" else _PLAIN
