"""The hunt for the first value of a training run that is not finite: its operator, its cause, what helps."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.environment import Environment
from peakward.records.result import Result

Phase = Literal["data", "forward", "backward", "gradients", "optimizer"]
"""The part of a step. `gradients`: what the step itself does with them between the backward pass and the
optimizer, as clipping."""
CauseKind = Literal[
    "bad batch",
    "learning rate",
    "overflow",
    "zero variance",
    "logarithm of zero",
    "outside the domain",
    "division by zero",
    "all masked",
    "infinite derivative",
    "optimizer state",
    "growing activations",
    "unknown",
]


class TensorSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values of one tensor, finite ones apart from the others."""

    role: str
    """As the operator's schema names it: "self", "other"; "output" of what it returned."""
    dtype: str
    shape: tuple[int, ...]
    n_nonfinite: int
    lowest: float | None
    """Among the finite values, as the next two; None where there is none."""
    highest: float | None
    mean: float | None
    n_zero: int
    least_row_spread: float | None = None
    """The smallest standard deviation of a row along the last axis."""


class Channel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place along one axis where most of the values that are not finite lie."""

    axis: int
    index: int
    n_nonfinite: int
    """There."""
    n_nonfinite_elsewhere: int


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator that made a value that is not finite out of finite ones, the first one of those that
    reached the loss, a parameter, the optimizer's state, or a gradient that a later step uses."""

    step: int
    """Counted from 0."""
    phase: Phase
    reached: str
    """The value's end: "the loss", "parameter head.weight", "state exp_avg of head.weight"; "gradient of
    head.weight" where a later step uses the gradient."""
    operator: str
    """As torch names it: "aten.log.default"; in the phase "data" the tensor of the batch."""
    module: str
    """The path of the module in whose forward pass it lies. Empty: outside of all modules."""
    module_type: str
    derivative_of: str | None
    """In the backward pass: the node of the graph, such as "LogBackward0"."""
    source: str | None
    """The line of the program, "file:line: code"; in the backward pass that of the forward pass."""
    output: TensorSummary
    inputs: tuple[TensorSummary, ...]
    channel: Channel | None
    exact_magnitude: float | None
    """The largest magnitude that the operator gives in fp64 on the same inputs; None where that is not finite
    either, or could not be computed."""
    masked_rows: int = 0
    """Rows of an input that hold nothing but negative infinity."""


class StepSeen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step before the fault, as it was replayed; those before the snapshot as they were watched, without
    what only a replay tells."""

    step: int
    loss: float | None
    """None: not finite, or the step returned none."""
    learning_rate: float | None
    """The rate of the first group."""
    gradient_norm: float | None = None
    """Over all parameters, in fp32, without the loss scale."""
    update_ratio: float | None = None
    """The norm of all parameters' change over the norm of all parameters."""
    loss_scale: float | None = None


class ModuleSeen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output of one module over the replayed steps."""

    module: str
    module_type: str
    largest: tuple[float | None, ...]
    """The largest magnitude at each step; None: not finite."""
    spread: tuple[float | None, ...]
    """The standard deviation at each step."""
    zero_share: tuple[float, ...]
    """The share of values that are 0 at each step."""


class Cause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The likely reason, and the figures that it rests on."""

    kind: CauseKind
    sentence: str
    advice: str
    """A change of the program that mends it."""


FixKind = Literal[
    "skip batch",
    "usual learning rate",
    "tenth of the learning rate",
    "clip gradients",
    "module in fp32",
    "epsilon of norm",
    "epsilon of optimizer",
]


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change that was made to the run from the last good snapshot on, and what became of it."""

    fix: FixKind
    target: str
    """The module or the value that it changes: "blocks.3.norm, eps 1e-05"."""
    passes: bool
    """Whether every step up to the last one that was tried stayed finite."""
    n_steps: int
    """Steps behind the snapshot that were run, the failing one among them where it passes and leaves
    no batch out."""
    last_loss: float | None
    code: str
    """The same in the user's program."""
    error: str | None = None
    """The error that the step raised with this change, which then does not pass."""


class Watching(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of watching."""

    snapshot_every: int
    n_snapshots: int
    snapshot_bytes: int
    """The size of one."""
    snapshots_s: float
    """The time of the host for all of them."""
    run_s: float
    """The whole watched run, snapshots included."""


Outcome = Literal["finite", "found", "not reproduced", "not repeatable"]


class Hunt(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training run that was watched, and rewound where a value turned non-finite."""

    ROWS: ClassVar[tuple[str, ...]] = ("steps",)

    name: str
    environment: Environment
    outcome: Outcome
    n_steps: int
    """The steps that ran."""
    last_loss: float | None
    watching: Watching
    reason: str | None = None
    """For an outcome other than "finite" and "found"."""
    snapshot_step: int | None = None
    """The steps that the state had seen from which the run was replayed."""
    replayed_bitwise: bool | None = None
    """Whether every replayed loss was the first one bit for bit."""
    fault: Fault | None = None
    cause: Cause | None = None
    with_batch_before: bool | None = None
    """Whether the step stays finite on the batch of the step before; None where it was not tried."""
    trials: tuple[Trial, ...] = ()
    steps: tuple[StepSeen, ...] = ()
    modules: tuple[ModuleSeen, ...] = ()
    """Those nearest to the fault: the module itself, those around it, and the repeated blocks."""
