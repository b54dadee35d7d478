"""A serving workload on hardware that nobody has at hand: what it can do at best."""

from typing import ClassVar

import msgspec

from peakward.records.inference import ServingCost, ServingFloor
from peakward.records.plan import Absent
from peakward.records.result import Result


class ServingSite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of device, one GPU of it. What is None was not asked for, or is in `absent`."""

    device: str
    """The catalogue's key."""
    device_name: str
    floor: ServingFloor | None
    """The least times, and what follows from them."""
    limit_bytes: int
    """What the GPU offers at least."""
    fits: bool
    """Weights and cache, and nothing else, within that."""
    price_per_gpu_hour: float | None
    least_cost_per_million_tokens: float | None
    """Of generated tokens, at the least times."""
    absent: tuple[Absent, ...]


class ServingPlan(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload on several kinds of devices; nothing was run."""

    ROWS: ClassVar[tuple[str, ...]] = ("devices",)

    cost: ServingCost
    """On any device."""
    command: str
    """Makes this plan again."""
    devices: tuple[ServingSite, ...]
    n_parameters: int | None = None
    """Of the model that is served, whether or not a token goes through them; None in older plans."""
