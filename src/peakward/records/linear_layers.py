"""Which linear layers of a user's module compute in fp8, and the times that this was chosen by."""

import msgspec


class LinearTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The linear layers of one shape, and how long one of them takes on this device, forward and backward."""

    tokens: int
    inputs: int
    outputs: int
    bias: bool
    n_layers: int
    """Layers that are called with this shape."""
    n_taken: int
    """Those of them that compute in fp8: a layer that has another shape too must win at both."""
    plain_s: float | None
    """In bf16; None where every layer was taken untimed."""
    fp8_s: float | None


class LinearChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The linear layers of a module under `fp8`."""

    layers: tuple[LinearTimes, ...]
    """One for each shape that can be in fp8."""
    left: tuple[str, ...]
    """The layers that cannot, with the reason, a sentence for those that are alike."""
    taken: tuple[str, ...] = ()
    """The paths of the layers that compute in fp8, * standing for any number, as `kernels.fp8_layers` takes
    them; empty in records of before 28 November 2026."""
