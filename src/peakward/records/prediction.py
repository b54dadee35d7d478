"""The predicted time of a step on a device: its floor by phase, its time by operator."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.case import Case
from peakward.records.measurement import Interval, Phase
from peakward.records.result import Result

Source = Literal["measured", "calibrated", "datasheet"]


class PhaseFloor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The minimum time of one phase: the longer of its arithmetic and its compulsory traffic."""

    phase: Phase
    flops: float
    bytes: float
    """Compulsory traffic: weights, gradients and optimiser state, each moved as often as necessary."""
    compute_s: float | None
    """None where the matmul rate of this device in the case's compute type is unknown."""
    memory_s: float
    floor_s: float | None
    bound: Literal["compute", "memory"] | None


class Prediction(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The floor of a step by phase, computed before the step is measured."""

    ROWS: ClassVar[tuple[str, ...]] = ("phases",)

    case: Case
    device: str
    phases: tuple[PhaseFloor, ...]
    floor_s: float | None
    """The sum over phases, because they run one after another."""
    compute_type: str
    matmul_flops_per_s: float | None
    bytes_per_s: float
    source: Source
    """The source of the two ceilings."""
    peak_flops_per_s: float | None = None
    """The datasheet's dense peak of the compute type, for MFU. None where the device is unknown."""


Bound = Literal["compute", "memory", "launch"]
"""`launch`: starting the operator takes longer than its arithmetic and its traffic."""
Waits = Literal["device", "host"]
"""The limit of a step: the device or the host, whichever takes longer."""


class OperatorTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of one operator in one phase and module, of any size."""

    name: str
    """As in `records.op_graph.Operator`; so are phase and module."""
    phase: Phase
    module: str | None
    category: str
    """The operator's purpose, by `prediction.operators.op_graph.category`."""
    n_calls: int
    flops: int
    """FLOPs of all calls. Bytes and seconds are of all calls too."""
    bytes: int
    device_s: float
    """Time on the device, from each launch to the next."""
    bound: Bound
    """The bound of most of the time."""
    fused: tuple[str, ...] = ()
    """As in `records.op_graph.Operator`."""


class PhasePrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time that one phase needs on the device and on the host, each by itself."""

    phase: Phase
    device_s: float
    host_s: float
    n_launches: int
    n_waits: int = 0
    """How often the host waits until the device has finished all earlier work."""


class StepTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The predicted time of a step. Nothing was run."""

    case: Case
    device: str
    source: Source
    """The source of the rates: a calibration of this device, or its datasheet."""
    step_s: Interval
    """The interval that holds the measured median of nine in ten cases (level 0.9). The accuracy benchmark
    found its width for predictions of this source and bound."""
    bound: Waits
    phases: tuple[PhasePrediction, ...]
    operators: tuple[OperatorTime, ...]
    """The longest first."""
    never_measured: tuple[str, ...] = ()
    """Operators whose kernels no stored result has timed. They make `step_s` wider."""
    host_is_known: bool = True
    """Whether the host's costs are those of the host in question. Another's make `step_s` wider."""
    host_call_s: float | None = None
    """The cost of one recorded call, of which the host's times are multiples. None in records that are older
    than this field."""
    host_backward_call_s: float | None = None
    """The same in the thread of the backward pass, of which the host's time of that phase is a multiple. None
    where it was not timed, and `host_call_s` was taken."""

    @property
    def never_measured_s(self) -> float:
        """The device's time for these operators."""
        return sum(each.device_s for each in self.operators if each.name in self.never_measured)

    @property
    def device_s(self) -> float:
        """The device's time, if the host is never late."""
        return sum(each.device_s for each in self.phases)

    @property
    def host_s(self) -> float:
        """The host's time, if it never waits."""
        return sum(each.host_s for each in self.phases)
