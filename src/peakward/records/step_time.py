"""How long a step is predicted to take on a device, operator by operator."""

from typing import Literal

import msgspec

from peakward.records.case import Case
from peakward.records.measurement import Interval, Phase
from peakward.records.prediction import Source

Bound = Literal["compute", "memory", "launch"]
"""launch: what it computes and moves takes less than starting it does."""
Waits = Literal["device", "host"]
"""What a step waits for: the one that takes longer."""


class OperatorTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of one operator in one phase and module, whatever their sizes."""

    name: str
    """As in `records.op_graph.Operator`, as are phase and module."""
    phase: Phase
    module: str | None
    category: str
    """What it is for: `prediction.operators.category`."""
    n_calls: int
    flops: int
    """Of all calls; so are bytes and seconds."""
    bytes: int
    device_s: float
    """On the device, from each launch to the next."""
    bound: Bound
    """Of most of the time."""
    fused: tuple[str, ...] = ()
    """As in `records.op_graph.Operator`."""


class PhaseTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one phase needs of the device and of the host, each by itself."""

    phase: Phase
    device_s: float
    host_s: float
    n_launches: int
    n_waits: int = 0
    """Times that the host waits until the device has done all before."""


class StepTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prediction; nothing was run."""

    case: Case
    device: str
    source: Source
    """Of the rates: calibrated on this device, or its datasheet."""
    step_s: Interval
    """Where the measured median of nine in ten cases lies (level 0.9), as the accuracy benchmark has
    found for predictions of this source and bound."""
    bound: Waits
    phases: tuple[PhaseTime, ...]
    operators: tuple[OperatorTime, ...]
    """The longest first."""
    never_measured: tuple[str, ...] = ()
    """Operators whose kernels no stored result has timed: for them `step_s` is wider."""

    @property
    def never_measured_s(self) -> float:
        """What the device needs for these."""
        return sum(each.device_s for each in self.operators if each.name in self.never_measured)

    @property
    def device_s(self) -> float:
        """What the device needs, if the host is never late."""
        return sum(each.device_s for each in self.phases)

    @property
    def host_s(self) -> float:
        """What the host needs, if it never waits."""
        return sum(each.host_s for each in self.phases)
