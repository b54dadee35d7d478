"""A model with a configuration at work in it: applied where the model lives, proved there, and taken back."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from peakward.records.case import Configuration, LeverCase
from peakward.records.errors import PeakwardError
from peakward.records.lever import NumericsVerdict, Trial
from peakward.records.result import Result
from peakward.records.study import Study
from peakward.report.format import format_cell
from peakward.stats.pairs import inverted
from peakward.tune.bench import COMPOSITION
from peakward.tune.costs import TURN
from peakward.tune.investigation import Aim
from peakward.tune.lever_stack import LeverStack
from peakward.tune.patching import AtWork, text_of
from peakward.tune.trials import Comparison, judged

if TYPE_CHECKING:
    import torch

    from peakward.lab.levers.in_place import Applied, Live
    from peakward.lab.levers.whole_step import WholeStep
    from peakward.lab.measure.messages import Turn

Loss = Callable[..., "torch.Tensor"]
NOT_FASTER = "Nothing was found that is better: the model is as it was."
LEAST_PAIRS, MOST_PAIRS = 4, 12
"""Fewer than four pairs of one process have an interval that tells little: two multiply their spread by 9."""
ROUNDS = "turns of this process"
INSIDE = (
    "The levers are in the module that torch.compile was given: call that (`._orig_mod`) or `.step` of the "
    "handle. What torch.compile made of it would compile all of it once more."
)


class Optimized(Result):
    """A model and an optimizer with the best composition of levers at work in them.

    Attributes:
        report: the study that found it, with notes on what was done in place.
        levers: the names of the levers that are at work; empty where none is.
        configuration: all that is set, as the study's cases have it.
        certificate: the loss, each gradient and one update on the batch, with the levers and without; None
            where they were not compared.
        proof: the step of the live model with and without the levers, timed in turns in this process; None
            where it was not timed.
        notes: what was not applied, was taken back or was lost, and why.
        loader: what feeds the step from now on; None where none was given.
    """

    def __init__(
        self,
        report: Study,
        live: "Live",
        stack: LeverStack,
        *,
        loss: "Loss | None",
        batch: Any | None,
        aim: Aim,
        until_s: float,
        loader: Iterable[Any] | None = None,
    ) -> None:
        """Certify and prove the levers in place and put them to work, or say why they are not at work.

        Args:
            batch: what to certify and prove them on; None: they are put to work as they are.
            until_s: the time by `time.monotonic` after which nothing more is timed.
            loader: made of the caller's own.
        """
        self._study, self._live, self._stack, self._loss = report, live, stack, loss
        self._applied: Applied | None = None
        self._step: WholeStep | None = None
        self.loader = loader
        self.certificate: NumericsVerdict | None = None
        self.proof: Trial | None = None
        self.notes: tuple[str, ...] = ()
        if not stack.levers:
            self.notes = (_nothing(report),)
            return
        self.notes = () if batch is None else _of_hooks(live)
        if live.compilation is not None:
            live.compilation.take_off()
        try:
            if batch is not None:
                self._certify(batch)
            if batch is not None and self._stack.levers:
                self.proof = self._proved(batch, aim, until_s)
            if self._stack.levers and (self.proof is None or self.proof.verdict == "kept"):
                self._applied = self._put(self._stack.top)
                if batch is not None:
                    self._warm_up(batch)
        except Exception as error:  # noqa: BLE001  compilers and a user's code may raise anything
            self.undo()
            said = f"Taken back: it does not run where the model lives: {_why(error)}"
            self.notes = (*self.notes, said)
        except BaseException:
            self.undo()
            raise
        finally:
            if self._applied is None:
                self._compile_again()
            elif live.compilation is not None and live.compilation.is_around:
                self.notes = (*self.notes, INSIDE)
        if self.proof is not None and self.proof.verdict != "kept":
            self.notes = (
                *self.notes,
                f"Taken back: in place it is not shown to be better: {self.proof.reason}.",
            )

    @property
    def report(self) -> Study:
        """The study, with the notes."""
        return msgspec.structs.replace(self._study, notes=(*self._study.notes, *self.notes))

    @property
    def levers(self) -> tuple[str, ...]:
        """The levers at work, in the order in which they were pulled."""
        held = () if self._applied is None else self._stack.levers
        return tuple(each.name for each in held)

    @property
    def configuration(self) -> Configuration:
        """The settings of the model and its optimizer now."""
        case = self._stack.base if self._applied is None else self._stack.top
        return case.configuration

    def step(self, batch: Any) -> "torch.Tensor":
        """Train on a batch: forward, loss, backward, update. With `cuda-graphs` it replays a graph.

        Args:
            batch: as for `optimize`; other shapes than before may have to be compiled or captured.

        Returns:
            The loss before the update, a scalar without a graph.
        """
        if self._step is None:
            self._step = self._new_step(self.configuration)
        return self._step(batch)

    def patch(self) -> str:
        """The levers as a unified diff of the file that called for them, for `patch -p1` or `git apply`.

        The lines stand in the place of the call; what only tells what the handle holds goes with it. What
        the diff does not make stands above it, a line each, which these programs pass over. A lever whose
        numbers did not hold in place is left out; layers in fp8 are those that the model has.

        Raises:
            PeakwardError: no lever was found; no file of the user's made the call, or it has changed since;
                the handle is used for more than to be told; or the model was compiled before the call, which
                a diff would have to take back.
        """
        if self._live.wrapper is not None:
            raise PeakwardError(
                "expected a model that is not wrapped yet, for a patch, got one inside "
                "DistributedDataParallel: call optimize before it is wrapped; its lines go there"
            )
        if self._live.compilation is not None:
            raise PeakwardError(
                "expected a model that is not compiled yet, for a patch, got a compiled one: leave its "
                "compilation out, call optimize again, and patch then; compilation is a lever here"
            )
        from peakward.lab.levers.fp8_layers import choice_in

        at_work = AtWork(self._stack.top, choice_in(self._live.model))
        return text_of(self._study, at_work)

    def undo(self) -> tuple[str, ...]:
        """Take every lever back. A second call does nothing.

        Before any training all is as it was, bit for bit: outputs, gradients, state_dict, flags of the
        optimizer, settings of torch. What was trained meanwhile stays trained.

        Returns:
            What could not be given back, a sentence each.
        """
        if self._step is not None:
            self._step.release()
            self._step = None
        if self._applied is None:
            return ()
        lost = self._applied.undo()
        self._applied = None
        self._compile_again()
        self.notes = (*self.notes, *lost)
        return lost

    def _compile_again(self) -> None:
        """As the caller did."""
        if self._live.compilation is not None:
            self._live.compilation.put_back()

    def __repr__(self) -> str:
        if self._applied is None:
            said = self.notes[-1] if self.notes else "taken back"
            return f"Optimized(nothing applied: {said})"
        ratio = None if self.proof is None else self.proof.time_ratio
        gain = "not timed" if ratio is None else format_cell(inverted(ratio).estimate, "ratio")
        return f"Optimized({' + '.join(self.levers)}: {gain})"

    def _certify(self, batch: Any) -> None:
        """Takes out levers until the numbers of the rest hold on the batch."""
        from peakward.lab.numerics.certificate import Certifier

        base = self._stack.base.configuration
        certifier = Certifier(
            self._live, self._loss, batch, partial(self._arm, self._stack.base, batch)
        )

        def judged(stack: LeverStack) -> NumericsVerdict:
            declared = stack.claims[-1].declared
            changed = partial(self._arm, stack.top, batch)
            try:
                return certifier.judged(changed, stack.top.configuration, base, declared)
            except Exception as error:  # noqa: BLE001  compilers and a user's code may raise anything
                return NumericsVerdict(
                    declared=declared, verdict="not computed", reason=_why(error)
                )

        while self._stack.levers:
            self.certificate = judged(self._stack)
            if self.certificate.verdict == "holds":
                return
            n = len(self._stack.levers)
            below = (self._stack.first(i) for i in range(1, n))
            whole = (self._stack, self.certificate)
            tried = ((each, judged(each)) for each in below)
            stack, found = next((each for each in tried if each[1].verdict != "holds"), whole)
            failed = stack.levers[-1].name
            self.notes = (*self.notes, f"{failed} is left out: {found.reason}.")
            self._stack = self._stack.without({failed})

    def _proved(self, batch: Any, aim: Aim, until_s: float) -> Trial:
        """Times the live step in turns, with the levers and without; all is as before afterwards."""
        from peakward.lab.measure.in_turns import pairs_of_turns

        start_s = time.monotonic()
        base, top = self._stack.base, self._stack.top
        question = Comparison(COMPOSITION, base, top, self.certificate)
        rounds: list[dict[LeverCase, Turn]] = []
        pairs = pairs_of_turns(
            partial(self._arm, base, batch), partial(self._arm, top, batch), TURN, self._live.place
        )
        for first, second in pairs:
            rounds += ({base: each.base, top: each.candidate} for each in (first, second))
            wall_s = time.monotonic() - start_s
            trial = judged(question, rounds, self._study.environment.key, wall_s, ROUNDS)
            proof = aim.weighed(trial)
            settled = proof.verdict != "inconclusive" or time.monotonic() > until_s
            if len(rounds) >= MOST_PAIRS or (settled and len(rounds) >= LEAST_PAIRS):
                break
        return proof

    def _warm_up(self, batch: Any) -> None:
        """Takes a step that compiles, and finds what is replaced, before the caller's first one; then
        everything is as before it."""
        from peakward.lab.levers.whole_step import WholeStep, copied
        from peakward.lab.models.snapshot import restored, without_hooks

        optimizer = self._live.optimizer
        with restored(self._live.model, optimizer), without_hooks(optimizer):
            WholeStep(self._live, self._loss)(copied(batch))

    @contextmanager
    def _arm(self, case: LeverCase, batch: Any) -> Iterator["Callable[[], torch.Tensor]"]:
        """The step under a configuration, for a while; then everything is as before it."""
        from peakward.lab.levers.whole_step import copied
        from peakward.lab.models.snapshot import restored, without_hooks

        optimizer = self._live.optimizer
        plain = case == self._stack.base and self._live.compilation is None
        applied = None if plain else self._put(case)
        step = self._new_step(case.configuration)
        try:
            with restored(self._live.model, optimizer), without_hooks(optimizer):
                # On a copy, or a model that writes to its inputs would go on from what it wrote.
                yield lambda: step(copied(batch))
        finally:
            step.release()
            if applied is not None:
                applied.undo()

    def _put(self, case: LeverCase) -> "Applied":
        """Applies all but what is of the whole step."""
        from peakward.lab.levers.in_place import Applied

        inside = msgspec.structs.replace(case.configuration, cuda_graphs=False)
        return Applied(self._live, inside, self._stack.base.configuration)

    def _new_step(self, configuration: Configuration) -> "WholeStep":
        from peakward.lab.levers.whole_step import WholeStep

        return WholeStep(self._live, self._loss, captured=configuration.cuda_graphs)


def _nothing(report: Study) -> str:
    """Why no lever is at work: the model alone gave no time, nothing is better, or the budget was too short
    to know."""
    baseline = next(iter(report.measurements), None)
    if baseline is not None and baseline.status != "ok":
        return (
            f"The model without levers gave no time, so that none was tried: {baseline.status}: "
            f"{baseline.reason}."
        )
    left = report.unfinished
    names = () if left is None else (*left.unconfirmed, *left.levers)
    if not names:
        return NOT_FASTER
    return (
        f"The budget was too short to judge {', '.join(names)}: the model is as it was. Give a larger "
        "budget, or fewer levers."
    )


def _of_hooks(live: "Live") -> tuple[str, ...]:
    """Says that hooks of the optimizer are off in the proof, where it has any."""
    from peakward.lab.models.snapshot import has_hooks

    if not has_hooks(live.optimizer):
        return ()
    return (
        "Hooks around the optimizer's step were off while it was compared and timed in place, with the "
        "levers and without: what one does elsewhere could not be put back. Their time is in neither.",
    )


def _why(error: Exception) -> str:
    from peakward.lab.measure.failure import of_exception

    return of_exception(error).reason
