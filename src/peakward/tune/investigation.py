"""Describes the request of an investigation: what a search seeks and what it must respect."""

from collections.abc import Callable

import msgspec

from peakward.levers.catalogue import changes, numerics_class, pull
from peakward.records.case import LeverCase
from peakward.records.lever import Lever, NumericsClass, Objective, Trial
from peakward.records.study import CallSite
from peakward.report.format import format_cell
from peakward.stats.pairs import judged, read
from peakward.tune.bench import Obstacle

STRICTEST_FIRST: tuple[NumericsClass, ...] = ("exact", "reordered", "approximate")


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults: the shortest step, whatever it needs, with every lever."""

    objective: Objective = "latency"
    """`latency` and `throughput` judge levers by the time of the step, whose tokens are the same;
    `throughput` then tries larger batches (`tune.larger_batches`)."""
    max_memory_bytes: int | None = None
    """The limit on peak allocated memory. Until a case is within it, levers are judged by their memory; from
    then on none that leaves it is kept."""
    numerics: NumericsClass = "approximate"
    """Levers that may change the numbers more are not tried."""

    @property
    def seeks_memory(self) -> bool:
        """Whether levers that save memory and no time have a place in the search."""
        return self.objective == "memory" or self.max_memory_bytes is not None

    def obstacle(self, lever: Lever, base: LeverCase) -> str | None:
        """Why the lever is not to be tried on the base, or None."""
        kind = numerics_class(lever, pull(lever, base))
        if STRICTEST_FIRST.index(kind) <= STRICTEST_FIRST.index(self.numerics):
            return None
        return f"is {kind}, and --numerics {self.numerics} was asked for"

    def can_judge(self, trial: Trial) -> bool:
        """Whether a stored trial holds what this objective compares."""
        return self.objective != "energy" or trial.energy_ratio is not None

    def weighed(self, trial: Trial) -> Trial:
        """The trial with the verdict of this aim. One that failed, or whose gain cannot be, keeps its own."""
        if trial.time_ratio is None or (trial.bound is not None and trial.bound.broken):
            return trial
        if self._exceeds(trial.candidate_peak_bytes) and not self._exceeds(trial.base_peak_bytes):
            return msgspec.structs.replace(trial, verdict="rejected", reason=self._too_large(trial))
        if self.objective == "memory" or self._exceeds(trial.base_peak_bytes):
            return _by_memory(trial)
        if self.objective == "energy":
            return _by_energy(trial)
        return trial if trial.judged_by == "time" else _by_time(trial)

    def notes(self) -> tuple[str, ...]:
        """Returns the report's notes about settings that are not the defaults."""
        found = []
        if self.objective == "memory":
            found.append("Levers were judged by peak allocated memory, whatever their time.")
        if self.objective == "energy":
            found.append("Levers were judged by the energy of a step, whatever their time.")
        if self.max_memory_bytes is not None:
            size = format_cell(self.max_memory_bytes, "bytes")
            found.append(
                f"At most {size} of peak allocated memory were asked for: until a case was within "
                "them levers were judged by memory, and from then on no lever was taken that leaves them."
            )
        if self.numerics != "approximate":
            found.append(f"Levers beyond the numerics class {self.numerics} were not tried.")
        return tuple(found)

    def missed(self, peak_bytes: int | None) -> tuple[str, ...]:
        """Returns the note for a best that still needs more memory than was allowed."""
        if not self._exceeds(peak_bytes):
            return ()
        needed = format_cell(peak_bytes, "bytes")
        return (f"The best found still needs {needed}, more than --max-memory.",)

    def _exceeds(self, peak_bytes: int | None) -> bool:
        limit = self.max_memory_bytes
        return limit is not None and peak_bytes is not None and peak_bytes > limit

    def _too_large(self, trial: Trial) -> str:
        needed = format_cell(trial.candidate_peak_bytes, "bytes")
        return f"needs {needed}, --max-memory is {format_cell(self.max_memory_bytes, 'bytes')}"


def _by_memory(trial: Trial) -> Trial:
    """A peak is the same every time, so that one is enough; still nothing is kept unconfirmed."""
    weighed = msgspec.structs.replace(trial, judged_by="memory")
    ratio = weighed.ratio
    if ratio is None:
        reason = "its peak memory is not known"
        return msgspec.structs.replace(weighed, verdict="inconclusive", reason=reason)
    verdict = read(ratio, judged_by="memory").verdict
    if verdict == "kept" and trial.stage != "confirmed":
        verdict = "inconclusive"
    reason = f"{format_cell(ratio.estimate, 'ratio')} the base's peak memory"
    return msgspec.structs.replace(weighed, verdict=verdict, reason=reason)


def _by_energy(trial: Trial) -> Trial:
    weighed = msgspec.structs.replace(trial, judged_by="energy")
    if weighed.ratio is None:
        reason = "the energy of a step was not measured on both sides"
        return msgspec.structs.replace(weighed, verdict="inconclusive", reason=reason)
    if trial.stage != "confirmed":
        # Counted once on each side: nobody knows how it varies.
        reason = f"{format_cell(weighed.ratio.estimate, 'ratio')} the base's energy when screened"
        return msgspec.structs.replace(weighed, verdict="inconclusive", reason=reason)
    return judged(weighed)


def _by_time(trial: Trial) -> Trial:
    """Judges a trial by time that was judged by another objective."""
    return judged(msgspec.structs.replace(trial, judged_by="time"))


class Investigation(msgspec.Struct, frozen=True, kw_only=True):
    """A start, what may be done to it, and for how long."""

    case: LeverCase
    """The start: the model, the workload and the user's own configuration or the baseline."""
    levers: tuple[Lever, ...]
    budget_s: float
    command: str
    """Reproduces the investigation."""
    obstacle: Obstacle
    """Why a lever cannot apply to a case on this machine, or None."""
    to_command: Callable[[LeverCase], str | None]
    """The command line that measures a case."""
    aim: Aim = Aim()
    real_model: str | None = None
    """The model with weights that the case's shape is of, as `peakward generate` takes it; None where the
    weights are random."""
    called: CallSite | None = None
    """The call of the user's that asks for it."""
    given: tuple[str, ...] = ()
    """How the module was given, where that is more than a module: a note each."""

    def forbids(self, lever: Lever, base: LeverCase) -> str | None:
        """Why the lever is not to be tried on the base, or None."""
        if lever.needs == "real weights" and self.real_model is None:
            return "is calibrated on what real weights make of a text, got random ones: name a --real-model"
        return self.aim.obstacle(lever, base) or self.obstacle(lever, base)

    @property
    def applicable(self) -> tuple[Lever, ...]:
        """The levers that change the start and may be tried on it."""
        return tuple(
            lever
            for lever in self.levers
            if changes(lever, self.case) and self.forbids(lever, self.case) is None
        )
