"""A serving workload on hardware that nobody has at hand: what it can do at best."""

from typing import ClassVar

import msgspec

from peakward.records.inference import ServingCost, ServingFloor
from peakward.records.plan import Absent
from peakward.records.result import Result


class ServingSite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU of one kind of device. A field is None where it was not requested, or where `absent` has a
    reason."""

    device: str
    """The device's key in the catalogue."""
    device_name: str
    floor: ServingFloor | None
    """The minimum times, and the figures that follow from them."""
    limit_bytes: int
    """The minimum of the GPU's available memory."""
    fits: bool
    """Whether weights and cache alone fit within `limit_bytes`."""
    price_per_gpu_hour: float | None
    least_cost_per_million_tokens: float | None
    """The cost of generated tokens at the minimum times."""
    absent: tuple[Absent, ...]


class ServingPlan(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload on several kinds of devices. Nothing was run."""

    ROWS: ClassVar[tuple[str, ...]] = ("devices",)

    cost: ServingCost
    """The cost on any device."""
    command: str
    """The command that makes this plan again."""
    devices: tuple[ServingSite, ...]
    n_parameters: int | None = None
    """All parameters of the served model, also those that a token does not use. None in older plans."""
