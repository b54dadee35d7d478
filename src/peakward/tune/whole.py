"""Tries all levers at once that are sure to gain, and takes apart what fails or disappoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from peakward.levers.axis import written
from peakward.levers.catalogue import pull
from peakward.records.case import LeverCase, StepCase
from peakward.records.lever import Lever, Trial
from peakward.stats.pairs import WORTH_HAVING
from peakward.tune.lever_stack import LeverStack
from peakward.tune.outlook import Outlook, rivals_of, sets_alike
from peakward.tune.screening import Screening
from peakward.tune.trials import promising

SURE = 0.985
"""The largest share that a lever of a composition that is tried whole may be expected to leave."""
DISAPPOINTING = 1.2
"""A composition that leaves more than this times what was expected is taken apart. nanoGPT's model (H200)
leaves 0.094 of its fp32 step with seven levers, where 0.086 is expected."""
NEAR = 1.15
"""A rival of the first lever that leaves more than this times as much is no beginning. Of eager steps fp8 is
predicted to leave 1.01 and 1.10 times what bf16 leaves (Llama-1B, Qwen2-1.5B), bf16-mixed 1.17; a beginning's
captures take seconds of a search."""
IN_A_FAILURE = {"cuda_graphs": "captur"}
"""A word for a setting that the reasons of its failures have, where it is not the value."""


class Whole(NamedTuple):
    """A composition, and the share of its base's step that it is expected to leave."""

    stack: LeverStack
    expected: float


def is_of_memory(lever: Lever) -> bool:
    """Whether the lever saves memory and usually no time."""
    return lever.saves == "memory" and (lever.usual_speedup or 0.0) <= 1


class AtOnce:
    """Finds a composition without a screening for each of its levers."""

    def __init__(self, outlook: Outlook, screening: Screening) -> None:
        self._outlook, self._screening = outlook, screening
        self.failed: set[str] = set()
        """Levers that the failure of a composition named."""

    def found(self, base: LeverCase, levers: Sequence[Lever]) -> LeverStack | None:
        """A composition of several levers that gained when it was screened whole; None without one.

        Where time is short for a screening and a proof, the proof alone is for it: compiled whole,
        Qwen2-1.5B takes 67 s for the first look (H200). One that does not run, or is slower than its base,
        loses levers until it is neither; where the failure names a lever, what is sure beside that takes its
        place. One that disappoints loses those that it is faster without, as far
        as the time for its proof allows.
        """
        whole = self.sure(base, levers)
        if whole is not None and not self._screening.fits(whole.stack):
            smaller = self._affordable(whole, self._screening.fits_unseen)
            if smaller is not None:
                return smaller.stack
        while whole is not None:
            trial = self._screening.at_once(whole.stack)
            if trial is None:
                return None
            if promising(trial):
                # The rates of products, which are all that is known of a live step, promise too much.
                return whole.stack if isinstance(base, StepCase) else self._lighter(whole, trial)
            suspects = self._suspects(whole.stack, trial)
            left = [each for each in levers if each.name not in self.failed]
            named = any(each.name in self.failed for each in suspects)
            whole = self.sure(base, left) if named else self._without(whole, suspects)
        return None

    def sure(self, base: LeverCase, levers: Sequence[Lever]) -> Whole | None:
        """The composition of all levers that are sure to gain, one on top of another, the largest gain first;
        None of fewer than two. Of two that are as good, the earlier in the catalogue.

        What the first lever is worth depends on the later ones, so its rivals begin compositions too, and the
        one that is expected to leave least is taken: eager, transformers' Llama-1B is predicted to be 1%
        slower in fp8 than in bf16; compiled, and with moments in bf16, it took 98.2 ms for 116.3 (H200).
        """
        best = self._grown(Whole(LeverStack(base=base), 1.0), levers)
        if not best.stack.levers:
            return None
        first = best.stack.levers[0]
        most = NEAR * self._outlook.surely(first, base, 1.0)
        for rival in levers:
            if rival == first or is_of_memory(rival) or not sets_alike(rival, first):
                continue
            expected = self._outlook.surely(rival, base, 1.0)
            if expected <= min(most, SURE):
                begun = Whole(LeverStack(base=base).on_top(rival), expected)
                best = min(best, self._grown(begun, levers), key=lambda each: each.expected)
        return best if len(best.stack.levers) > 1 else None

    def _grown(self, whole: Whole, levers: Sequence[Lever]) -> Whole:
        """The composition with all that is sure on top of it."""
        stack, expected = whole
        while True:
            ratios = {
                lever: self._outlook.surely(lever, stack.top, expected)
                for lever in levers
                if not is_of_memory(lever)
                and lever not in stack.levers
                and not rivals_of(lever, stack)
            }
            best = min(ratios, key=lambda each: ratios[each], default=None)
            if best is None or ratios[best] > SURE:
                whole = Whole(stack, expected)
                larger = self._with_graph(whole, ratios)
                return whole if larger is None else self._grown(larger, levers)
            stack, expected = stack.on_top(best), expected * ratios[best]

    def _with_graph(self, whole: Whole, ratios: Mapping[Lever, float]) -> Whole | None:
        """The composition with a lever and a CUDA graph, where only the two together are sure to gain:
        compiled blocks of GPT-2 are told to take the host longer than eager ones, and the device 5% less."""
        graph = next((each for each in ratios if dict(each.sets).get("cuda_graphs")), None)
        if graph is None:
            return None
        top, expected = whole.stack.top, whole.expected
        pairs = {
            lever: ratio * self._outlook.surely(graph, pull(lever, top), expected * ratio)
            for lever, ratio in ratios.items()
            if lever != graph
        }
        best = min(pairs, key=lambda each: pairs[each], default=None)
        if best is None or pairs[best] > SURE:
            return None
        return Whole(whole.stack.on_top(best).on_top(graph), expected * pairs[best])

    def _affordable(self, whole: Whole, fits: Callable[[LeverStack], bool]) -> Whole | None:
        """The whole without the levers that promise least, as far as it fits."""
        smaller: Whole | None = whole
        while smaller is not None and not fits(smaller.stack):
            smaller = self._without(smaller, smaller.stack.levers[-1:])
        return smaller

    def _suspects(self, stack: LeverStack, trial: Trial) -> tuple[Lever, ...]:
        """The lever that the reason of a failure names; else the half that promised least, each of which is
        tried by itself on what is proved."""
        named = [each for each in stack.levers if _is_named(each, trial.reason)]
        if trial.status != "ok" and named:
            self.failed.add(named[-1].name)
            return (named[-1],)
        return stack.levers[(len(stack.levers) + 1) // 2 :]

    def _without(self, whole: Whole, gone: Sequence[Lever]) -> Whole | None:
        rest = whole.stack.without({each.name for each in gone})
        if len(rest.levers) < 2:
            return None
        kept, expected = LeverStack(base=rest.base), 1.0
        for each in rest.levers:
            expected *= self._outlook.surely(each, kept.top, expected)
            kept = kept.on_top(each)
        return Whole(kept, expected)

    def _lighter(self, whole: Whole, trial: Trial) -> LeverStack:
        """The whole, or where it disappoints what it is faster as, without one lever after another."""
        assert trial.ratio is not None
        seen = trial.ratio.estimate
        for lever in reversed(whole.stack.levers):
            if seen <= whole.expected * DISAPPOINTING:
                break
            lighter = self._without(whole, (lever,))
            found = None if lighter is None else self._screening.at_once(lighter.stack)
            if lighter is None or found is None:
                break
            if found.ratio is not None and found.ratio.estimate <= seen * WORTH_HAVING:
                self._outlook.saw_worse(lever, lighter.stack.top, seen / found.ratio.estimate)
                whole, seen = lighter, found.ratio.estimate
        return whole.stack


def _is_named(lever: Lever, reason: str) -> bool:
    return any(
        IN_A_FAILURE.get(name, written(value) if isinstance(value, str) else name) in reason.lower()
        for name, value in lever.sets
    )
