"""How long the parts of an investigation should take: for its budget and for a dry run."""

from math import ceil

import msgspec

from peakward.levers.compile import in_one_piece
from peakward.levers.registry import at_work
from peakward.records.case import LeverCase, StepCase
from peakward.records.measurement import Measurement, Protocol

HEADLINE = Protocol(min_steps=5, max_timed_s=3.0)
"""Baseline and best: their medians and phases stand in the report's first lines. No more than 5 steps where
each takes long: beside two busy loops a step of the default case took 4 s on two cores, and with ten
the baseline alone did not end in the 100 s of the budget."""
SCREEN = Protocol(min_steps=5, max_steps=50, max_timed_s=0.5, phases=False)
"""Enough to see a gain of a few per cent; what survives is confirmed in pairs."""
TURN = Protocol(
    warmup_steps=3,
    min_steps=5,
    max_steps=100,
    max_timed_s=0.5,
    phases=False,
)
"""One case of a confirmation: its median is one observation, so its own interval need not be narrow,
and after three steps what is left of a warm-up is in all cases (screening tested each for it)."""
COUNTED_SCREEN = msgspec.structs.replace(SCREEN, max_steps=5000, max_timed_s=1.0)
COUNTED_TURN = msgspec.structs.replace(TURN, max_steps=5000, max_timed_s=1.0)
"""Where energy is compared: long enough for its counter, which half a second is not always."""
N_PROCESSES, N_MORE_PROCESSES = 3, 2
"""The processes of a confirmation, and how many more where three were inconclusive.

Simulated with 0.3% noise within a process: a lever without effect is kept in 0.0, 1.6, 3.8 and 4.1% of
trials at 0.3, 1, 2 and 4% noise between processes (2.5% at one look), and one that saves 5% in 100, 100,
99 and 61%.
"""
LEAST_PROCESSES = 2
"""The fewest that are judged: where they leave no doubt, or the time ended in the third. On nanoGPT's model
(H200) a search of four minutes lost a gain of nearly 8 times for want of a third."""

AGAIN = 0.45
"""The share of the first compilation's time that the next one takes: the kernels come from torch's cache
on disk, the tracing does not: 11.4 s for 24.9 of nanoGPT's model with its loss replaced (H100)."""
WHOLE_MODEL = 4
"""How many times as long the whole model compiles as its repeated block, where its layers are not known."""
LAYER_S = 2.5
"""The same for each of its layers: transformers' Llama-1B takes 44 s for 16 on an H200's host, Qwen2-1.5B 67
for 28, nanoGPT's model 25 for 12 (H100)."""
OWN_KERNELS_S = 10.0
"""Kernels of our own for one part of the step, built for the first time: attention by flash-hopper takes 8 to
17 s on an H200's host, by flash 3."""
FEW_STEPS_S = 2.0
"""The steps of a check on a GPU: they are of four blocks and 512 tokens, whatever the case takes."""
ANALYSE_S = 3.0
"""Writing a trace of a few steps, reading it back and analysing it. Reckoned: traces of 3 steps of
12 layers hold some 30,000 events."""
ORACLE = 2
"""How many cases an oracle in fp64 counts as, in a check of numbers."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, to begin with guessed from the device and then learned from the baseline."""

    start_s: float
    """A worker process, until torch is imported and the device ready."""
    arm_s: float
    """One arm built and warmed up, without compilation."""
    compile_s: float
    """On top of it, the first time a configuration compiles."""
    build_s: float | None = None
    """One arm built, before it warms up; None until it was seen."""
    whole_compile_s: float | None = None
    """A whole model compiled for the first time; None where its layers are not known."""
    n_at_once: int = 1
    """The processes that can start at the same time."""

    def starts_s(self, n_processes: int) -> float:
        """Processes that are started together, before the first of them measures."""
        return ceil(n_processes / self.n_at_once) * self.start_s

    def screen_s(
        self, candidate: LeverCase, *, on: LeverCase | None = None, base_s: float | None = None
    ) -> float:
        """One candidate screened on a base; it should take as long as that, where it is known, and what is
        compiled or built for the first time."""
        again_s = base_s or self.arm_s + SCREEN.max_timed_s
        return again_s + self._first_s(candidate, on)

    def unseen_s(self, candidate: LeverCase) -> float:
        """The first process takes longer by this where it times a candidate that was not screened."""
        return self._first_s(candidate, None) - AGAIN * self._compiling_s(candidate)

    def _first_s(self, case: LeverCase, on: LeverCase | None) -> float:
        ours = _ours(case) - (frozenset() if on is None else _ours(on))
        return self._compiling_s(case) + OWN_KERNELS_S * len(ours)

    def turn_s(self, case: LeverCase) -> float:
        """A case in its turn, as far as it was not screened yet."""
        # It warms up for 3 steps and is timed for 5, one that is screened for some ten.
        return self.arm_s / 2 + TURN.max_timed_s + AGAIN * self._compiling_s(case)

    def check_s(self, case: LeverCase, *, turn_s: float | None = None) -> float:
        """The outputs of a case for a check of numbers, by how long its turn takes: built as for its turn,
        but compiled anew for fewer layers and tokens."""
        turn_s = self.turn_s(case) if turn_s is None else turn_s
        if case.device != "cuda" or self.build_s is None:
            return turn_s + (1 - AGAIN) * self._compiling_s(case)
        compiling_s = self.compile_s if case.configuration.compile != "none" else 0.0
        kernels_s = OWN_KERNELS_S * len(_ours(case))
        return min(turn_s, self.build_s + FEW_STEPS_S) + compiling_s + kernels_s

    def profile_s(self, case: LeverCase) -> float:
        """Some steps of one case profiled, in a process of their own.

        A profiler makes a step longer, by half of its time to be on the safe side.
        """
        return self.start_s + 1.5 * self.arm_s + AGAIN * self._compiling_s(case) + ANALYSE_S

    def _compiling_s(self, case: LeverCase) -> float:
        if case.configuration.compile == "none":
            return 0.0
        is_whole = not isinstance(case, StepCase) and in_one_piece(case)
        if not is_whole:
            return self.compile_s
        return self.whole_compile_s or self.compile_s * WHOLE_MODEL


def _ours(case: LeverCase) -> frozenset[tuple[str, str | bool]]:
    """The settings that run kernels of our own, which are built on a GPU."""
    if case.device != "cuda":
        return frozenset()
    working = at_work(case.configuration)
    return frozenset((axis.name, value) for axis, value in working if value in axis.own_kernels)


def guessed(case: LeverCase, floor_s: float | None) -> Costs:
    """Before anything ran: a warm-up is some ten steps, none faster than its floor.

    Start and compilation on a GPU as seen on an H200 with 16 cores (8.8 and 7 to 8 s, 2026-11-21);
    on a CPU they are reckoned (compiling took 13 to 28 s on two cores that others used too).
    """
    warmup_s = 10 * (floor_s or 0.0)
    if case.device == "cuda":
        return Costs(start_s=9.0, arm_s=0.5 + warmup_s, compile_s=8.0)
    return Costs(start_s=3.0, arm_s=0.5 + warmup_s, compile_s=20.0)


def learned(
    guess: Costs, baseline: Measurement, *, n_at_once: int = 1, started_s: float = 0.0
) -> Costs:
    """The guess with the baseline's own start, build and warm-up, and its compilation apart from them.

    Args:
        n_at_once: processes that can start at the same time.
        started_s: of the baseline's measurement, for its process to start.
    """
    compiling_s = baseline.compile.compile_s if baseline.compile is not None else 0.0
    warmup_s = max(sum(sum(run.warmup_s) for run in baseline.runs) - compiling_s, 0.0)
    timed_s = sum(sum(run.steps_s) for run in baseline.runs)
    if not timed_s:
        return msgspec.structs.replace(guess, n_at_once=n_at_once)
    start_s = min(guess.start_s, max(baseline.wall_s - compiling_s - warmup_s - timed_s, 0.1))
    return msgspec.structs.replace(
        guess,
        start_s=start_s,
        arm_s=0.5 + warmup_s,
        build_s=build_s(baseline, started_s=started_s),
        n_at_once=n_at_once,
    )


def build_s(baseline: Measurement, *, started_s: float = 0.0) -> float:
    """Returns how long the baseline took to be built, where its process took `started_s` to start first."""
    compiling_s = baseline.compile.compile_s if baseline.compile is not None else 0.0
    ran_s = sum(sum(run.warmup_s) + sum(run.steps_s) for run in baseline.runs)
    phases_s = sum(each.n * each.median_s for each in baseline.phases)
    return max(baseline.wall_s - started_s - compiling_s - ran_s - phases_s, 0.0)


def again_s(measured: Measurement, *, build_s: float) -> float:
    """Returns how long a case should take in its turn, where it is built in `build_s`: it warms up and is
    timed for fewer steps there, and its phases are not timed. Kernels that were built for the first time when
    it was measured lie in a cache then: attention by flash-hopper took 31 s when it was screened, for 5."""
    compiling_s = measured.compile.compile_s if measured.compile is not None else 0.0
    ran_s = 0.0
    for run in measured.runs:
        least_s = max(TURN.max_timed_s, sum(run.steps_s[: TURN.min_steps]))
        warmup_s = max(sum(run.warmup_s[: TURN.warmup_steps]) - compiling_s, 0.0)
        ran_s += min(least_s, sum(run.steps_s)) + warmup_s
    return min(build_s + AGAIN * compiling_s + ran_s, measured.wall_s)
