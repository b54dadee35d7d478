"""The messages between parent and worker: one JSON object a line each way.

Imports no torch: both sides read it.
"""

from typing import Literal

import msgspec

from peakward.records.calibration import MatmulRate, Rates, Subject
from peakward.records.case import (
    Case,
    CompileScope,
    DeviceType,
    LeverCase,
    ModelCase,
    ModuleCase,
    OperatorCase,
)
from peakward.records.lever import Claim, NumericsVerdict
from peakward.records.linear_layers import LinearChoice
from peakward.records.measurement import (
    CompileReport,
    EndedBy,
    Feeding,
    FirstStep,
    LoaderWait,
    MemoryUse,
    Outputs,
    PhaseTime,
    PieceWork,
    Protocol,
    Quality,
    Run,
    Speculated,
    Status,
    Telemetry,
)
from peakward.records.memory import MemoryMarks
from peakward.records.numerics import Numerics
from peakward.records.op_graph import ModuleCapture
from peakward.records.parallel import LinkCalibration, RanksWork

Stage = Literal[
    "starting",
    "building",
    "warming up",
    "timing",
    "profiling",
    "recording memory",
    "verifying",
    "calibrating",
]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """The base of all messages; the name of a subclass is its tag."""


class MeasureRequest(Message, frozen=True, kw_only=True):
    """Measure one case."""

    case: Case
    protocol: Protocol


class TurnsRequest(Message, frozen=True, kw_only=True):
    """Time cases one after another."""

    cases: tuple[LeverCase, ...]
    protocol: Protocol


class NumericsRequest(Message, frozen=True, kw_only=True):
    """Check the numbers of candidates of one model and workload against their classes."""

    claims: tuple[Claim, ...]


class CheckRequest(Message, frozen=True, kw_only=True):
    """Build a user's module and run it once, to find its faults."""

    case: ModuleCase


class CaptureRequest(Message, frozen=True, kw_only=True):
    """Capture the operators of a user's module on tensors without values."""

    case: ModuleCase


class CalibrateRequest(Message, frozen=True, kw_only=True):
    """Measure this device's ceilings."""

    device_type: DeviceType


class RatesRequest(Message, frozen=True, kw_only=True):
    """Measure one subject of what a time model needs beyond the ceilings."""

    device_type: DeviceType
    subject: Subject


class FirstStepRequest(Message, frozen=True, kw_only=True):
    """Profile the first step of a case. Only a fresh process can answer."""

    case: ModelCase | OperatorCase


class ProfileRequest(Message, frozen=True, kw_only=True):
    """Write a trace of some steps of a case."""

    case: LeverCase | OperatorCase
    path: str
    """The absolute path of the gzipped file to write; other files are written beside it on the way."""
    n_steps: int
    with_stack: bool
    """Whether to record Python's frames, which makes a step several times as long."""


class MemoryRequest(Message, frozen=True, kw_only=True):
    """Write an allocator snapshot of two steps of a case."""

    case: ModelCase
    path: str
    """The absolute path of the gzipped file to write."""


Request = (
    MeasureRequest
    | TurnsRequest
    | NumericsRequest
    | CheckRequest
    | CaptureRequest
    | CalibrateRequest
    | RatesRequest
    | FirstStepRequest
    | ProfileRequest
    | MemoryRequest
)


class Event(Message, frozen=True, kw_only=True):
    """The present stage of the worker."""

    stage: Stage
    done: int = 0
    total: int | None = None
    """The largest planned number of steps; None where unknown."""
    turn: int | None = None
    """The index of the case among several, from 0."""


class Ready(Message, frozen=True, kw_only=True):
    """torch is imported; requests will be served."""

    pid: int
    """The process id of the worker."""


class Failed(Message, frozen=True, kw_only=True):
    """The request ended without an answer."""

    status: Status
    reason: str
    ended_by: EndedBy = "case"


class Measured(Message, frozen=True, kw_only=True):
    """Answer to `MeasureRequest`."""

    run: Run
    doubts: tuple[str, ...]
    """The reasons to doubt the times that neither they nor the telemetry show."""
    phases: tuple[PhaseTime, ...]
    memory: MemoryUse | None
    telemetry: Telemetry | None
    compile: CompileReport | None
    n_parameters: int | None
    loss: float | None
    linear: LinearChoice | None = None
    piece: PieceWork | None = None
    speculated: Speculated | None = None
    feeding: Feeding | None = None
    loader: LoaderWait | None = None
    outputs: Outputs | None = None
    quality: Quality | None = None
    collectives: LinkCalibration | None = None
    ranks: RanksWork | None = None
    numerics: Numerics | None = None


class Turn(Message, frozen=True, kw_only=True):
    """One of the cases of a `TurnsRequest`."""

    median_s: float
    """The mean where a user's loader feeds the step (`stats.summary.typical_s`)."""
    peak_bytes: int
    doubts: tuple[str, ...] = ()
    """The other work that ran while it was timed."""
    energy_j: float | None = None
    """The energy of a step; None where the device does not count it, or ran too short for its counter."""


class TurnsTimed(Message, frozen=True, kw_only=True):
    """Answer to `TurnsRequest`: a turn for each case, in its order; none where one failed."""

    turns: tuple[Turn, ...] = ()
    status: Status = "ok"
    reason: str | None = None
    failed: int | None = None
    """The index of the case that failed with `status`, from 0; None where none of them had begun."""
    ended_by: EndedBy = "case"


class NumericsChecked(Message, frozen=True, kw_only=True):
    """Answer to `NumericsRequest`."""

    verdicts: tuple[NumericsVerdict, ...]
    """One for each claim."""


class Checked(Message, frozen=True, kw_only=True):
    """Answer to `CheckRequest`: nothing was wrong, or there was nothing to check."""

    missing: str | None = None
    """The reason why the source cannot be found."""
    compiled: CompileScope | None = None
    """The part of the module that its factory compiled."""
    in_bf16: bool = False
    """Whether its parameters come in bf16."""


class Captured(Message, frozen=True, kw_only=True):
    """Answer to `CaptureRequest`."""

    capture: ModuleCapture


class Calibrated(Message, frozen=True, kw_only=True):
    """Answer to `CalibrateRequest`."""

    matmul: tuple[MatmulRate, ...]
    copy_bytes_per_s: float
    copy_size_bytes: int
    doubt: str | None = None


class RatesMeasured(Message, frozen=True, kw_only=True):
    """Answer to `RatesRequest`."""

    rates: Rates


class FirstStepProfiled(Message, frozen=True, kw_only=True):
    """Answer to `FirstStepRequest`."""

    first_step: FirstStep


class Profiled(Message, frozen=True, kw_only=True):
    """Answer to `ProfileRequest`."""

    path: str
    n_steps: int
    profiled_step_s: float
    """The median time of a profiled step. It serves only to show the profiler's cost, beside the case's
    own step time."""


class MemoryRecorded(Message, frozen=True, kw_only=True):
    """Answer to `MemoryRequest`."""

    path: str
    marks: MemoryMarks
    trace: str | None = None
    """The name of the second step's trace, in the same folder; None on a CPU."""


class Released(Message, frozen=True, kw_only=True):
    """Sent after every answer, once the memory that the request left has been given back."""

    clean: bool
    """Whether the worker is fit for another request."""
    held_bytes: int
    """The device memory that the worker keeps on a GPU; 0 on a CPU."""


Answer = (
    Measured
    | TurnsTimed
    | NumericsChecked
    | Checked
    | Captured
    | Calibrated
    | RatesMeasured
    | FirstStepProfiled
    | Profiled
    | MemoryRecorded
    | Failed
)
Reply = (
    Event
    | Ready
    | Released
    | Measured
    | TurnsTimed
    | NumericsChecked
    | Checked
    | Captured
    | Calibrated
    | RatesMeasured
    | FirstStepProfiled
    | Profiled
    | MemoryRecorded
    | Failed
)
