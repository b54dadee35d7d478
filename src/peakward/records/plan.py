"""Plans: of a case, of serving and of a model's size on absent hardware; dry runs of commands."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.case import Case, ConfiguredCase, ModelCase
from peakward.records.inference import ServingCost, ServingFloor
from peakward.records.measurement import Interval, Protocol
from peakward.records.memory import MemoryPrediction
from peakward.records.prediction import StepTime
from peakward.records.result import Result

Parallel = Literal["ddp", "fsdp"]
"""How several GPUs share a step; each has its own batch. ddp: each also has a whole copy of the model. fsdp:
parameters, gradients and optimiser state are sharded over all GPUs (ZeRO-3) and gathered block by block."""


class Absent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure that was not computed, and why."""

    figure: str
    reason: str


class DeviceGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs of one node that share a step."""

    n_gpus: int
    parallel: Parallel


class Communication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The communication of a group's GPUs in one step."""

    group: DeviceGroup
    sent_bytes: float
    """Bytes that each GPU sends."""
    link_bytes_per_s: float
    """The rate of one GPU in one direction, as its maker states it."""
    time_s: Interval
    """The time of all collectives without other work. Estimate and ends differ in the share of the link's
    rate that collectives reach."""
    exposed_s: Interval
    """The part of `time_s` that the step waits for. At the high end nothing overlaps."""


class Forecast(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case on one kind of device. A field is None where it was not computed or not requested; `absent` has
    the reason where it was not computed."""

    case: Case
    """A captured module is a `StepCase`."""
    device: str
    """The device's key in the catalogue."""
    device_name: str
    group: DeviceGroup | None
    """None: one GPU."""
    time: StepTime | None
    """The time of one GPU without communication."""
    communication: Communication | None
    step_s: Interval | None
    """The step time with its wait for communication. The measured median of nine in ten cases lies in the
    interval."""
    floor_s: float | None
    """The minimum step time of the case on this device, by `prediction.floor`."""
    tokens_per_s: Interval | None
    """Tokens of all GPUs together."""
    mfu: Interval | None
    """Model FLOPs over the datasheet's dense peak of the compute type."""
    peak_flops_per_s: float | None
    """The peak that `mfu` refers to."""
    memory: MemoryPrediction | None
    """The memory of one GPU of the group."""
    needed_bytes: int | None
    """The memory that one GPU of the group needs: the allocator's reserved bytes and the context. For
    compiled code and CUDA graphs it is what the same step needs without them."""
    limit_bytes: int
    """The GPU's available memory, or the case's own limit."""
    fits: bool | None
    gpu_hours_per_million_tokens: Interval | None
    cost_per_million_tokens: Interval | None
    """In the currency of the price."""
    energy_per_token_j: Interval | None
    """An upper limit: the boards draw their power limit all the time."""
    absent: tuple[Absent, ...]


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The predicted effect of levers, beside the forecast of the unchanged case."""

    levers: tuple[str, ...]
    step_s: Interval | None
    speedup: Interval | None
    """Step time without the levers over step time with them."""
    needed_bytes: int | None
    fits: bool | None
    absent: tuple[Absent, ...]
    """Figures that were not computed. A lever that cannot apply has one for the figure "all"."""
    never_measured: tuple[str, ...] = ()
    """As in `records.step_time.StepTime`, for the step with the levers."""


class DevicePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of device: the case's forecast, its largest batch and length, and the effect of levers."""

    forecast: Forecast
    price_per_gpu_hour: float | None
    """In any currency, the same for all devices of a plan."""
    largest_batch_size: int | None
    """The largest batch of one GPU. 0: not even a single sequence fits."""
    longest_seq_len: int | None = None
    """The longest sequence on one GPU with the case's batch, in steps of 64 tokens. 0: not even the shortest
    fits."""
    changes: tuple[Change, ...]
    """One for each lever alone, the largest gain first."""
    composition: Change | None
    """Levers stacked as long as each one gains, then levers that make the case fit. None where no lever
    gains."""
    composed_case: ModelCase | None
    absent: tuple[Absent, ...]
    """Absent figures beyond the forecast's."""


class Plan(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case on several kinds of devices; nothing was run."""

    ROWS: ClassVar[tuple[str, ...]] = ("devices",)

    case: ConfiguredCase
    command: str
    """The command that makes this plan again."""
    devices: tuple[DevicePlan, ...]
    n_parameters: int | None = None
    """All parameters of the model, also those that a token does not use. None in older plans."""
    notes: tuple[str, ...] = ()
    """Parts of the request that the plan leaves out."""


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


class ScalingFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Loss in nats a token of N parameters trained on D tokens: E + A / N^alpha + B / D^beta."""

    name: str
    source: str
    irreducible_loss: float
    """E: the loss that no model size and no amount of data removes."""
    parameter_coefficient: float
    """A."""
    parameter_exponent: float
    """alpha."""
    token_coefficient: float
    """B."""
    token_exponent: float
    """beta."""


class TrainingPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model size and the tokens to train it on."""

    rule: str
    """The source of both numbers: a fit's optimum, or a rule of thumb."""
    n_parameters: float
    n_tokens: float
    tokens_per_parameter: float
    training_flops: float
    """6·N·D."""
    fit: str
    """The name of the fit that gives the loss."""
    loss: float
    """The predicted loss, in nats a token."""


class LifetimePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model size that reaches a loss with the least work for training and serving together."""

    training: TrainingPlan
    served_tokens: float
    """Tokens that go through the model over its life, prompts and outputs together."""
    serving_flops: float
    """2·N for each served token."""
    lifetime_flops: float
    relative_price: float
    """The price of a FLOP of serving over one of training, by which the two were weighed."""


class Tariff(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of arithmetic on one device."""

    peak_flops_per_s: float
    """The datasheet's dense peak, which MFU refers to."""
    mfu: float
    """The share of that peak that model FLOPs reach: above 0, at most 1."""
    price_per_device_hour: float
    """In any currency."""


class Bill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Device time and its price."""

    flops: float
    device_hours: float
    price: float
    """In the tariff's currency."""


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of the command."""

    what: str
    predicted_s: float | None = None
    """None where it was not predicted."""
    case: Case | None = None
    """The case that would be measured, where it is known beforehand."""
    protocol: Protocol | None = None
    is_stored: bool | None = None
    """Whether the database already holds its measurement; None for steps that are never stored."""


class DryRun(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a command would do, in order. Nothing was run."""

    ROWS: ClassVar[tuple[str, ...]] = ("steps",)

    command: str
    steps: tuple[PlannedStep, ...]
    budget_s: float | None = None
    """The approximate upper limit of the time spent; None where the command takes no budget."""
    left_out: tuple[str, ...] = ()
    """The reasons why requested parts cannot run here."""
