"""Numbers looked at: types under autocast, rounding to formats, distances from fp64, a hunted run."""

from typing import Literal

import msgspec

from peakward.records.debugging import Hunt

TensorKind = Literal["parameter", "output", "logits", "loss", "gradient", "operator", "function"]
Rounded = Literal["activations", "weights", "gradients"]


class TypeSeen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The type of a tensor as it came out of a module, an operator or a function under autocast."""

    kind: TensorKind
    where: str
    """The module's path, or the operator's or function's name."""
    dtype: str
    """As torch names it, "float32"."""
    given: str | None = None
    """The type of the inputs, of an operator and a function; None where there are none of floats."""
    plain: str | None = None
    """The type that a function gives of the same inputs without autocast; None where it refuses them."""
    n: int = 1
    """How many times."""


class Rounding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensors of one kind, rounded to a format and compared with what they were in fp64."""

    format: str
    of: Rounded
    scaling: Literal["none", "tensor", "groups"]
    """`tensor`: scaled so that its largest magnitude is the format's. `groups`: the same for every so many
    elements of a row."""
    n: int
    """Values that are not 0."""
    error: float
    """‖rounded − x‖ / ‖x‖ over all tensors of the kind; values beyond the format count as its largest."""
    zeroed: float
    """The share of values that became 0."""
    beyond: float
    """The share of values above the format's largest."""
    least: float
    """The smallest magnitude that is not 0, and the largest."""
    largest: float


class Drift(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The distance of one quantity from the fp64 oracle, ‖x − oracle‖ / ‖oracle‖."""

    quantity: Literal["logits", "loss", "gradients"]
    error: float
    fp32_error: float
    """The same of the step in fp32."""
    bound: float
    """The largest error that the numerics class of the precision's lever allows."""


class Numerics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a `NumericsCase`; only its own subject's fields are filled."""

    types: tuple[TypeSeen, ...] = ()
    roundings: tuple[Rounding, ...] = ()
    drifts: tuple[Drift, ...] = ()
    hunt: Hunt | None = None
    losses: tuple[float | None, ...] = ()
    """The loss of each step of the hunted run; None: not finite."""
    zero_share: tuple[float, ...] = ()
    """The share of zeros in the channel that went bad first, at each step up to the fault."""
