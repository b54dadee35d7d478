"""A change that may make a case faster or smaller."""

from typing import Literal, get_args

import msgspec

from peakward.records.case import DeviceType, Pass
from peakward.records.device import Vendor
from peakward.records.result import Result

NumericsClass = Literal["exact", "reordered", "approximate"]


class Lever(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the lever changes in a case, when it applies, and what it may do to the numbers."""

    name: str
    summary: str
    sets: tuple[tuple[str, str | bool], ...]
    """(field of `Configuration`, value) pairs."""
    numerics: NumericsClass
    """`exact`: bitwise under determinism. `reordered`: within twice the base's own error against an
    fp64 oracle. `approximate`: logits within the bound that its compute type allows."""
    saves: Literal["time", "memory"] = "time"
    passes: tuple[Pass, ...] = get_args(Pass)
    device_types: tuple[DeviceType, ...] = ("cpu", "cuda")
    vendors: tuple[Vendor, ...] = get_args(Vendor)
    """Whose GPUs it was shown to run on, or is known to."""
    min_compute_capability: tuple[int, int] | None = None
    """Of NVIDIA's."""
    max_compute_capability: tuple[int, int] | None = None
    needs_precision: tuple[str, ...] = ()
    """Precisions under which it can run; empty: all."""
    needs: Literal["compiler"] | None = None
    """What the machine must have beside the device."""
