"""What the parent asks of a worker, and what it answers: one JSON object a line each way.

Imports no torch: both sides read it.
"""

from typing import Literal

import msgspec

from peakward.records.calibration import MatmulRate
from peakward.records.case import DeviceType, ModelCase, OperatorCase
from peakward.records.lever import NumericsClass
from peakward.records.measurement import (
    CompileReport,
    FirstStep,
    MemoryUse,
    PhaseTime,
    Run,
    Status,
    Telemetry,
)
from peakward.records.protocol import Protocol
from peakward.records.trial import NumericsVerdict, Pair

Stage = Literal[
    "starting", "building", "warming up", "timing", "profiling", "verifying", "calibrating"
]
Arm = Literal["base", "candidate"]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """The base of all; its subclass's name is the tag."""


class MeasureRequest(Message, frozen=True, kw_only=True):
    """Measure one case."""

    case: ModelCase | OperatorCase
    protocol: Protocol


class PairsRequest(Message, frozen=True, kw_only=True):
    """Time two cases in turn, A being the base and B the candidate."""

    base: ModelCase
    candidate: ModelCase
    order: str
    protocol: Protocol
    process: int


class NumericsRequest(Message, frozen=True, kw_only=True):
    """Check the candidate's numbers against its class."""

    base: ModelCase
    candidate: ModelCase
    declared: NumericsClass


class CalibrateRequest(Message, frozen=True, kw_only=True):
    """Measure this device's ceilings."""

    device_type: DeviceType


class FirstStepRequest(Message, frozen=True, kw_only=True):
    """Profile the first step of a case. Only a fresh process can answer."""

    case: ModelCase | OperatorCase


class ProfileRequest(Message, frozen=True, kw_only=True):
    """Write a trace of some steps of a case."""

    case: ModelCase | OperatorCase
    path: str
    """Of the gzipped file to write, absolute; on the way, files beside it are written too."""
    n_steps: int
    with_stack: bool
    """Whether to record Python's frames, which costs a step several times its own."""


Request = (
    MeasureRequest
    | PairsRequest
    | NumericsRequest
    | CalibrateRequest
    | FirstStepRequest
    | ProfileRequest
)


class Event(Message, frozen=True, kw_only=True):
    """What the worker is doing."""

    stage: Stage
    done: int = 0
    total: int | None = None
    """Steps that are planned at most; None where unknown."""
    arm: Arm | None = None


class Ready(Message, frozen=True, kw_only=True):
    """torch is imported; requests will be served."""


class Failed(Message, frozen=True, kw_only=True):
    """The request ended otherwise than by an answer."""

    status: Status
    reason: str
    arm: Arm | None = None


class Measured(Message, frozen=True, kw_only=True):
    """Answer to `MeasureRequest`."""

    run: Run
    doubts: tuple[str, ...]
    """Why the times may not be believed, beside what they and the telemetry show themselves."""
    phases: tuple[PhaseTime, ...]
    memory: MemoryUse
    telemetry: Telemetry | None
    compile: CompileReport | None
    n_parameters: int | None
    loss: float | None


class PairsOutcome(Message, frozen=True, kw_only=True):
    """Answer to `PairsRequest`; without pairs where an arm failed."""

    pairs: tuple[Pair, ...] = ()
    base_peak_bytes: int | None = None
    candidate_peak_bytes: int | None = None
    status: Status = "ok"
    reason: str | None = None
    failed_arm: Arm | None = None
    """Whose failure `status` is."""
    doubts: tuple[str, ...] = ()
    """What else ran while the arms were timed, each once."""


class NumericsChecked(Message, frozen=True, kw_only=True):
    """Answer to `NumericsRequest`."""

    verdict: NumericsVerdict


class Calibrated(Message, frozen=True, kw_only=True):
    """Answer to `CalibrateRequest`."""

    matmul: tuple[MatmulRate, ...]
    copy_bytes_per_s: float
    copy_size_bytes: int
    doubt: str | None = None


class FirstStepProfiled(Message, frozen=True, kw_only=True):
    """Answer to `FirstStepRequest`."""

    first_step: FirstStep


class Profiled(Message, frozen=True, kw_only=True):
    """Answer to `ProfileRequest`."""

    path: str
    n_steps: int
    profiled_step_s: float
    """Median. Beside the case's own step time it says what the profiler cost, and nothing else."""


class Released(Message, frozen=True, kw_only=True):
    """Sent after every answer, once what the request left has been given back."""

    clean: bool
    """Whether the worker is fit for another request."""
    held_bytes: int
    """Device memory that it keeps on a GPU; 0 on a CPU."""


Answer = (
    Measured | PairsOutcome | NumericsChecked | Calibrated | FirstStepProfiled | Profiled | Failed
)
Reply = (
    Event
    | Ready
    | Released
    | Measured
    | PairsOutcome
    | NumericsChecked
    | Calibrated
    | FirstStepProfiled
    | Profiled
    | Failed
)
