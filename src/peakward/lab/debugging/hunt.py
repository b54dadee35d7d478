"""Runs a training loop under watch; where a value turns non-finite, goes back to a good state, replays
it, and finds the operator that made the value.

Three replays: as the run was, to see whether it repeats and which step it is; eagerly with the outputs of
modules looked at; and of the failing step alone with every operator looked at. Then changes are tried from
the same snapshot on.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peakward.lab.debugging import fixes
from peakward.lab.debugging.batches import Batches
from peakward.lab.debugging.locate import UNKNOWN, Locator, fault_of, located
from peakward.lab.debugging.losses import Losses, same
from peakward.lab.debugging.replay import Seen, learning_rate
from peakward.lab.debugging.snapshot import GRADIENT, Snapshot, Snapshots, TrainingState
from peakward.lab.debugging.values import is_finite
from peakward.records.debugging import (
    Cause,
    Fault,
    Hunt,
    ModuleSeen,
    Outcome,
    StepSeen,
    Trial,
    Watching,
)
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment

STEPS_BEYOND = 10
"""Steps behind the failing one that a change must stay finite for."""
MOST_TRIALS = 4
N_EARLIER = 20
"""Steps before the snapshot that the report has."""


CauseOf = Callable[[Fault, Sequence[StepSeen], Sequence[ModuleSeen]], Cause]


class Asked(NamedTuple):
    """A run to watch.

    `step` is called with the next batch, or with nothing where there are none, and returns the loss or
    nothing.
    """

    name: str
    step: Callable[..., object]
    batches: Iterable[Any] | None
    n_steps: int
    snapshot_every: int
    check_every: int
    folder: Path | None
    state: TrainingState
    cause: CauseOf
    """Reads the likely cause from the operator and the steps before."""


def hunt(asked: Asked, environment: Environment) -> Hunt:
    """Run the steps, or as many as stay finite.

    Raises:
        PeakwardError: a step whose result is no loss, batches that end before the first step or are written
            over one another, or a disk that takes no snapshot.
    """
    run = _Run(asked)
    began = perf_counter()
    failed = run.watched()
    losses = run.losses.all()
    watching = Watching(
        snapshot_every=asked.snapshot_every,
        n_snapshots=run.snapshots.n_taken,
        snapshot_bytes=max((each.n_bytes for each in run.snapshots.kept), default=0),
        snapshots_s=run.snapshots.spent_s,
        run_s=perf_counter() - began,
    )
    last = next(
        (each for each in reversed(losses) if each is not None and math.isfinite(each)), None
    )

    def told(outcome: Outcome, **found: Any) -> Hunt:
        return Hunt(
            name=asked.name,
            environment=environment,
            outcome=outcome,
            n_steps=run.n_done,
            last_loss=last,
            watching=watching,
            **found,
        )

    return told("finite") if not failed else _rewound(run, told)


def _rewound(run: "_Run", told: Callable[..., Hunt]) -> Hunt:
    snapshot = run.snapshots.good()
    if snapshot is None:  # The first one: no other is taken behind one that is not good.
        run.snapshots.kept[0].restore()
        return told("not repeatable", reason=_from_the_beginning(run.asked.state))
    try:
        return _looked_into(run, snapshot, told)
    finally:
        snapshot.restore()


def _looked_into(run: "_Run", snapshot: Snapshot, told: Callable[..., Hunt]) -> Hunt:
    first = run.replayed(snapshot)
    found: dict[str, Any] = {"snapshot_step": snapshot.step, "replayed_bitwise": first.is_bitwise}
    if first.failed is None:
        outcome: Outcome = "not reproduced" if first.is_bitwise else "not repeatable"
        return told(outcome, reason=run.why_not(snapshot, first), **found)
    seen = run.looked_at(snapshot, first.failed)
    fault = run.located(first.failed)
    if fault is not None and fault.operator.startswith(GRADIENT):  # Of an earlier micro-step.
        began = run.began_in_gradients(snapshot, first.failed)
        if began is None:
            return told("not repeatable", reason=_in_snapshot(fault, snapshot), **found)
        seen = run.looked_at(snapshot, began)
        fault = run.located_in_gradients(began)
    if fault is None:
        reason = (
            f"step {first.failed} turned non-finite again as it was run, and not in eager mode operator by "
            "operator: compiled code, a kernel that is no operator of torch, or arithmetic of the host makes "
            "the value"
        )
        return told("not reproduced", reason=reason, steps=tuple(seen.steps), **found)
    if fault.operator == UNKNOWN:
        return told("not repeatable", reason=_unknown(fault), **found)
    modules = seen.modules(fault.module)
    steps = (*run.earlier(snapshot), *seen.steps)
    cause = run.asked.cause(fault, steps, modules)
    tried = run.tried(snapshot, first.failed, fault, cause, steps)
    with_batch_before = run.with_batch_before(snapshot, fault)
    return told(
        "found",
        fault=fault,
        cause=cause,
        with_batch_before=with_batch_before,
        trials=tried,
        steps=steps,
        modules=modules,
        **found,
    )


class _Replay(NamedTuple):
    failed: int | None
    """The first step that left a value which is not finite."""
    is_bitwise: bool
    losses: list[float | None]


class _Run:
    """The state of a hunt: what is run, its losses, snapshots and batches."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.losses = Losses(asked.check_every)
        self.snapshots = Snapshots(asked.state, folder=asked.folder)
        self.n_done = 0
        self.batches = Batches(asked.batches)
        self._rates: list[float | None] = []

    def watched(self) -> bool:
        """Run on until a loss or the newest snapshot is not finite, the steps are over, or the batches are.
        Returns whether a value is not finite."""
        for n in range(self.asked.n_steps):
            if n % self.asked.snapshot_every == 0:
                if not self.snapshots.are_good():
                    return True
                self.snapshots.take(n)
                self.batches.forget(self.snapshots.kept[0].step)
            if not self.batches.has(n):
                break
            self._rates.append(learning_rate(self.asked.state.optimizer))
            self.losses.add(self._step(n))
            self.n_done = n + 1
            if self.losses.first_nonfinite() is not None:
                return True
        if not self.n_done:
            raise PeakwardError(
                "expected batches for one step at least, got none: give a loader that has some"
            )
        losses = self.losses.all()
        is_bad = any(each is not None and not math.isfinite(each) for each in losses)
        return is_bad or not self.asked.state.is_finite()

    def replayed(self, snapshot: Snapshot) -> _Replay:
        """Repeat the steps as they were run until one leaves a value that is not finite."""
        recorded, losses = self.losses.all(), []
        for n in self._from(snapshot, self.n_done):
            losses.append(_number(self._repeated(n)))
            if not _loss_is_finite(losses[-1]) or not self.asked.state.is_finite():
                return _Replay(n, _agree(losses, recorded[snapshot.step :]), losses)
        return _Replay(None, _agree(losses, recorded[snapshot.step :]), losses)

    def why_not(self, snapshot: Snapshot, first: _Replay) -> str:
        """Why a replay did not fail as the run did: it is replayed once more."""
        if first.is_bitwise:
            return (
                "the replayed steps give the same losses bit for bit, and all stay finite: the run was "
                "stopped before the value reached a loss"
            )
        again = self.replayed(snapshot)
        if _agree(again.losses, first.losses):
            return (
                "two replays agree with each other and not with the run: the step reads something that "
                "changed during the run and is no part of model, optimizer, random states or batch (a "
                "counter, a file, a loader inside of the step). Give a loader as batches=, the optimizer, "
                "and objects with a state_dict as stateful="
            )
        return (
            "two replays disagree: the step reads what moves on from call to call (a counter, a file, a "
            "loader inside of the step), draws random numbers from a generator of its own without a seed, or "
            "its kernels add in another order at each call. Give a loader as batches= and objects with a "
            "state_dict as stateful=, draw from torch's generator, or set "
            "torch.use_deterministic_algorithms(True)"
        )

    def looked_at(self, snapshot: Snapshot, failed: int) -> Seen:
        """Repeat the steps before the failing one eagerly, with figures of each. Leaves the state before
        it."""
        seen = Seen(self.asked.state)
        with _eager(), seen.looking():
            for n in self._from(snapshot, failed):
                seen.begin()
                seen.end(n, _number(self._repeated(n)))
        return seen

    def located(self, failed: int) -> Fault | None:
        """The operator of the failing step; the state must be that before it."""
        locator, loss = self._operators(failed)
        return fault_of(locator, failed, {"the loss": loss, **self.asked.state.tensors()})

    def located_in_gradients(self, step: int) -> Fault | None:
        """The operator of a step that leaves gradients which are not finite; as `located`."""
        locator, _ = self._operators(step)
        return fault_of(locator, step, self.asked.state.gradients())

    def _operators(self, step: int) -> tuple[Locator, object]:
        with located(self.asked.state, self.batches.kept(step)) as locator:
            loss = self._repeated(step)
        return locator, loss

    def began_in_gradients(self, snapshot: Snapshot, failed: int) -> int | None:
        """The last step before the failing one that begins with finite gradients; None where there is none
        since the snapshot."""
        began = None
        for n in self._from(snapshot, failed):
            if self._gradients_are_finite():
                began = n
            self._repeated(n)
        return began

    def _gradients_are_finite(self) -> bool:
        return all(map(is_finite, self.asked.state.gradients().values()))

    def earlier(self, snapshot: Snapshot) -> tuple[StepSeen, ...]:
        """The last steps before the snapshot, as they were watched."""
        losses = self.losses.all()
        return tuple(
            StepSeen(step=n, loss=losses[n], learning_rate=self._rates[n])
            for n in range(max(0, snapshot.step - N_EARLIER), snapshot.step)
        )

    def with_batch_before(self, snapshot: Snapshot, fault: Fault) -> bool | None:
        """Whether the step of the fault stays finite on the batch of the step before."""
        if self.batches.kept(fault.step - 1) is None:
            return None
        for n in self._from(snapshot, fault.step):
            self._repeated(n)
        self.batches.put_back_random(fault.step)
        loss = _number(self._step(fault.step - 1))
        if fault.reached.startswith(GRADIENT) and not self._gradients_are_finite():
            return False
        return _loss_is_finite(loss) and self.asked.state.is_finite()

    def tried(
        self,
        snapshot: Snapshot,
        failed: int,
        fault: Fault,
        cause: Cause,
        steps: Sequence[StepSeen],
    ) -> tuple[Trial, ...]:
        """Changes, each from the snapshot to some steps behind the failing one; until one passes, and at most
        so many. A batch is left out only where another follows it: no step would tell whether that helps."""
        trials: list[Trial] = []
        for fix in fixes.candidates(fault, cause, self.asked.state, steps)[:MOST_TRIALS]:
            if fix.skips and (self.asked.batches is None or not self.batches.has(fault.step + 1)):
                continue
            kept = [
                n
                for n in range(snapshot.step, failed + 1 + STEPS_BEYOND)
                if not (fix.skips and n == fault.step)
            ]
            trials.append(self._trial(snapshot, kept, fix))
            if trials[-1].passes:
                break
        return tuple(trials)

    def _trial(self, snapshot: Snapshot, steps: Sequence[int], fix: fixes.Fix) -> Trial:
        losses: list[float | None] = []
        error = None
        snapshot.restore()  # Before the change: what it sets may be part of the state.
        with fixes.applied(fix):
            try:
                passes = self._stays_finite(steps, losses)
            except Exception as raised:  # noqa: BLE001  The step is the user's.
                passes, error = False, _told(raised)
        return Trial(
            fix=fix.kind,
            target=fix.target,
            passes=passes,
            n_steps=len(losses),
            last_loss=losses[-1] if passes and losses else None,
            code=fix.code,
            error=error,
        )

    def _stays_finite(self, steps: Sequence[int], losses: list[float | None]) -> bool:
        """Run these steps, or as many as have batches and stay finite; adds the loss of each."""
        for n in steps:
            if not self.batches.has(n):
                break
            losses.append(_number(self._repeated(n)))
            if not _loss_is_finite(losses[-1]) or not self.asked.state.is_finite():
                return False
        return True

    def _from(self, snapshot: Snapshot, until: int) -> Iterator[int]:
        snapshot.restore()
        yield from range(snapshot.step, until)

    def _step(self, n: int) -> object:
        return self.asked.step(*self.batches.arguments(n))

    def _repeated(self, n: int) -> object:
        """The step as it was run: on its batch and its random numbers."""
        self.batches.put_back_random(n)
        return self._step(n)


def _from_the_beginning(state: TrainingState) -> str:
    bad = next(name for name, each in state.tensors().items() if not is_finite(each))
    return f"{bad} was not finite before the first step: begin from a state that is"


def _unknown(fault: Fault) -> str:
    where = "" if fault.source is None else f" ({fault.source})"
    return (
        f"step {fault.step} reads a tensor{where} that was not finite before it and is no part of model, "
        "optimizer, stateful or batch: give the optimizer, and what else holds a state; mend it where it is "
        "a constant"
    )


def _in_snapshot(fault: Fault, snapshot: Snapshot) -> str:
    return (
        f"the {fault.operator} is added to from step to step and was not finite at step {snapshot.step}, "
        "where the oldest snapshot is: take them less often, so that one lies before"
    )


def _told(error: Exception) -> str:
    """The type of an error and the first sentence of what it says: torch's lists of backends are long."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said.partition('. ')[0]}"


def _eager() -> Any:
    return torch.compiler.set_stance("force_eager")


def _number(loss: object) -> float | None:
    if isinstance(loss, Tensor):
        return float(loss.detach())
    return float(loss) if isinstance(loss, int | float) else None


def _loss_is_finite(loss: float | None) -> bool:
    return loss is None or math.isfinite(loss)


def _agree(mine: list[float | None], theirs: list[float | None]) -> bool:
    return all(same(one, other) for one, other in zip(mine, theirs, strict=False))
