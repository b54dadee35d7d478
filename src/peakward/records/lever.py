"""A change that may make a case faster or smaller."""

from typing import Literal, get_args

import msgspec

from peakward.records.case import DeviceType, Pass
from peakward.records.device import Vendor
from peakward.records.result import Result

NumericsClass = Literal["exact", "reordered", "approximate"]


class Lever(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lever: its settings, the cases that it applies to, and its effect on the numbers."""

    name: str
    summary: str
    sets: tuple[tuple[str, str | bool], ...]
    """(field of `Configuration`, value) pairs."""
    numerics: NumericsClass
    """`exact`: bitwise equal under determinism. `reordered`: the error against an fp64 oracle is at most
    twice the base's own. `approximate`: logits stay within the bound that the compute type allows."""
    saves: Literal["time", "memory"] = "time"
    passes: tuple[Pass, ...] = get_args(Pass)
    device_types: tuple[DeviceType, ...] = ("cpu", "cuda")
    vendors: tuple[Vendor, ...] = get_args(Vendor)
    """Vendors whose GPUs are shown or known to run it."""
    min_compute_capability: tuple[int, int] | None = None
    """A limit for NVIDIA's GPUs only."""
    max_compute_capability: tuple[int, int] | None = None
    needs_precision: tuple[str, ...] = ()
    """Precisions under which it can run. Empty: all."""
    needs: Literal["compiler"] | None = None
    """Software that the machine needs beside the device."""
