"""What a case is expected to need on hardware that nobody has at hand, and what would change it."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.case import Case, ModelCase
from peakward.records.measurement import Interval
from peakward.records.memory import MemoryPrediction
from peakward.records.result import Result
from peakward.records.step_time import StepTime

Parallel = Literal["ddp", "fsdp"]
"""Each GPU has a batch of its own. ddp: and a whole copy of the model. fsdp: parameters, gradients
and optimiser state lie sharded over all GPUs (ZeRO-3), and are gathered block by block."""


class Absent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure that was not computed, and why."""

    figure: str
    reason: str


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs of one node that share a step."""

    n_gpus: int
    parallel: Parallel


class Communication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the GPUs of a group tell each other in one step."""

    group: Group
    sent_bytes: float
    """By each GPU."""
    link_bytes_per_s: float
    """Of one GPU in one direction, as its maker states it."""
    time_s: Interval
    """Of all collectives, if nothing else ran. Estimate and ends differ in the share of the link's
    rate that collectives reach."""
    exposed_s: Interval
    """What of it the step waits for. High end: nothing overlaps."""


class Forecast(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case on one kind of device. What is None was not computed or not asked for; `absent` has the
    reason of the former."""

    case: Case
    """A captured module is a `StepCase`."""
    device: str
    """The catalogue's key."""
    device_name: str
    group: Group | None
    """None: one GPU."""
    time: StepTime | None
    """Of one GPU by itself."""
    communication: Communication | None
    step_s: Interval | None
    """With what the step waits for communication; the measured median of nine in ten cases lies in
    it."""
    floor_s: float | None
    """No step of the case can be faster on this device: `prediction.floor`."""
    tokens_per_s: Interval | None
    """Of all GPUs together."""
    mfu: Interval | None
    """Model FLOPs over the datasheet's dense peak of the compute type."""
    peak_flops_per_s: float | None
    """That peak."""
    memory: MemoryPrediction | None
    """Of one GPU of the group."""
    needed_bytes: int | None
    """Of one GPU of the group: what the allocator reserves, and the context. Of compiled code and of
    CUDA graphs what the same step needs without."""
    limit_bytes: int
    """What a GPU offers, or what the case's limit allows."""
    fits: bool | None
    gpu_hours_per_million_tokens: Interval | None
    cost_per_million_tokens: Interval | None
    """In the currency of the price."""
    energy_per_token_j: Interval | None
    """At most: at the boards' power limit all the time."""
    absent: tuple[Absent, ...]


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What pulling levers would change, beside the forecast of the case as it is."""

    levers: tuple[str, ...]
    step_s: Interval | None
    speedup: Interval | None
    """Step time without over step time with them."""
    needed_bytes: int | None
    fits: bool | None
    absent: tuple[Absent, ...]
    """A lever that cannot apply has one for the figure "all"."""
    never_measured: tuple[str, ...] = ()
    """As in `records.step_time.StepTime`, of the step with the levers."""


class DevicePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of device: the case as it is, how far it could grow, and what levers would do."""

    forecast: Forecast
    price_per_gpu_hour: float | None
    """In any currency, the same for all devices of a plan."""
    largest_batch_size: int | None
    """Of one GPU; 0: not even a single sequence fits."""
    longest_seq_len: int | None = None
    """Of one GPU with the case's batch, in steps of 64 tokens; 0: not even the shortest fits."""
    changes: tuple[Change, ...]
    """Of each lever alone, the greatest gain first."""
    composition: Change | None
    """Levers on top of one another as long as each gains, then those that make it fit. None where no
    lever gains."""
    composed_case: ModelCase | None
    absent: tuple[Absent, ...]
    """Beyond the forecast's."""


class Plan(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case on several kinds of devices; nothing was run."""

    ROWS: ClassVar[tuple[str, ...]] = ("devices",)

    case: ModelCase
    command: str
    """Makes this plan again."""
    devices: tuple[DevicePlan, ...]
    n_parameters: int | None = None
    """Of the model, whether or not a token goes through them; None in older plans."""
