"""Levers, their trials, and how well predictions of their effect held."""

import math
from typing import ClassVar, Literal, get_args

import msgspec

from peakward.records.case import DeviceType, LeverCase, Pass
from peakward.records.device import Vendor
from peakward.records.measurement import EndedBy, Interval, Status
from peakward.records.plan import Absent
from peakward.records.result import Result

NumericsClass = Literal["exact", "reordered", "approximate"]


class Lever(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lever: its settings, the cases that it applies to, and its effect on the numbers."""

    name: str
    summary: str
    sets: tuple[tuple[str, str | bool], ...]
    """(field of `Configuration`, value) pairs."""
    numerics: NumericsClass
    """`exact`: bitwise equal under determinism. `reordered`: the error against an fp64 oracle is at most
    twice the base's own. `approximate`: logits stay within the bound that the compute type allows."""
    saves: Literal["time", "memory"] = "time"
    passes: tuple[Pass, ...] = get_args(Pass)
    device_types: tuple[DeviceType, ...] = ("cpu", "cuda")
    vendors: tuple[Vendor, ...] = get_args(Vendor)
    """Vendors whose GPUs are shown or known to run it."""
    min_compute_capability: tuple[int, int] | None = None
    """A limit for NVIDIA's GPUs only."""
    max_compute_capability: tuple[int, int] | None = None
    needs_precision: tuple[str, ...] = ()
    """Precisions under which it can run. Empty: all."""
    needs: Literal["compiler", "real weights"] | None = None
    """Software that the machine needs beside the device, or weights that are no random ones."""
    usual_speedup: float | None = None
    """The median speed-up of stored trials on GPUs. It orders a search where nothing is predicted."""
    usual_of: tuple[str, ...] = ()
    """Sources of modules, as `hf`, that the median is of. Empty: all cases."""


TrialVerdict = Literal["kept", "rejected", "inconclusive"]
Objective = Literal["latency", "throughput", "memory", "energy"]
"""The goal of a search: the shortest step, the most tokens/s, the lowest peak memory, or the least energy of
a step."""


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Median step times of base and candidate, which ran next to each other in one process."""

    process: int
    base_s: float
    candidate_s: float
    base_j: float | None = None
    """The energy of a step, where the device counts it and ran long enough."""
    candidate_j: float | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The claim that a candidate computes what its base does, within a numerics class."""

    base: LeverCase
    candidate: LeverCase
    declared: NumericsClass


class NumericsError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The error of one quantity against the fp64 oracle, ‖x − oracle‖ / ‖oracle‖. For a live step the oracle
    is the step without the lever, and the base is a second call of that step. None stands for an error that
    is not finite."""

    quantity: Literal["logits", "loss", "gradients", "parameters", "updates", "losses"]
    """`losses` are those of a short training run."""
    candidate_error: float | None
    base_error: float | None
    bound: float | None
    """The largest `candidate_error` that the class allows."""
    parameter: str | None = None
    """The parameter whose gradient or update it is; None for a quantity of the whole model."""

    def __post_init__(self) -> None:
        """JSON has no NaN: it would be written as null, and not be read again."""
        for name in ("candidate_error", "base_error", "bound"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                msgspec.structs.force_setattr(self, name, None)

    @property
    def share_of_bound(self) -> float:
        """The candidate's error over its bound; infinite where either is not finite."""
        if self.candidate_error is None or self.bound is None:
            return math.inf
        if self.bound == 0:
            return math.inf if self.candidate_error else 0.0
        return self.candidate_error / self.bound

    @property
    def is_broken(self) -> bool:
        """Whether the candidate errs by more than its class allows."""
        if self.candidate_error is None or self.bound is None:
            return True
        return self.candidate_error > self.bound


MAGNITUDES_LOG2 = tuple(range(-12, 9, 2))
"""Between which powers of two magnitudes of activations are counted; the first bin has all below, the last
all from there on, with infinity and NaN."""


class TrainingCourse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model's course through a short training run. None stands for a value that is not finite."""

    losses: tuple[float | None, ...]
    """By step."""
    gradient_norms: tuple[tuple[float | None, ...], ...]
    """By step, of each of `TrainingRun.layers`."""
    output_norms: tuple[tuple[float | None, ...], ...]
    """By step, after its update, of each repeated layer."""
    magnitudes: tuple[tuple[tuple[int, ...], ...], ...]
    """By step of `TrainingRun.looks` and repeated layer: of a thousand elements of its output, those in each
    bin of `MAGNITUDES_LOG2`."""


class TrainingRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A short training run of the candidate, its base and the fp64 oracle, from the same weights on the same
    batches."""

    layers: tuple[str, ...]
    """The repeated layers by their number, and "others"."""
    n_repeated: int
    """How many of these are repeated layers; 0 where the module repeats none that it calls, and outputs by
    layer are then not computed."""
    looks: tuple[int, ...]
    """The steps, from 1, whose activations were counted."""
    candidate: TrainingCourse
    base: TrainingCourse
    oracle: TrainingCourse


class QualityVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a real model reads a text as well with weights or a cache in fewer bits as its base does."""

    verdict: Literal["holds", "violated", "not computed"]
    """`holds`: the whole interval of `more_loss` is within the bound."""
    bound: float
    """The largest `more_loss` that is allowed, in nats a token."""
    model: str | None = None
    """The real model, as `peakward generate` takes it; None where the weights are random."""
    text: str | None = None
    loss: float | None = None
    """The base's, in nats a token."""
    more_loss: Interval | None = None
    """The candidate's loss less the base's on the same stretches, a t-interval at 95%."""
    reason: str | None = None


class NumericsVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the candidate keeps the promise of its numerics class."""

    declared: NumericsClass
    verdict: Literal["holds", "violated", "not computed"]
    reason: str | None = None
    errors: tuple[NumericsError, ...] = ()
    quality: QualityVerdict | None = None
    """None of a lever that keeps nothing in fewer bits, and in verdicts older than this field."""
    training: TrainingRun | None = None
    """None of a pass that does not train, of an exact lever, where a step of the oracle takes too long for
    it, and in verdicts older than this field."""


class Foretold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The predicted effect of a lever, made before its candidate was measured against its base."""

    time_ratio: Interval | None = None
    """Candidate's step time over base's. Nine in ten measured ratios lie in the interval. None where it was
    not computed, for the reason in `absent`."""
    memory_ratio: float | None = None
    """Candidate's peak allocated memory over base's. None where it was not computed."""
    absent: tuple[Absent, ...] = ()
    """The reasons for missing figures, named "time" and "memory"."""


class Bound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The minimum of a trial's time ratio. A smaller measured ratio is an error of Peakward."""

    least_time_ratio: float
    basis: Literal["profile", "floor"]
    """`profile`: the base's work that the lever cannot change, over the base's step (Amdahl). `floor`: the
    candidate's products at the device's peak rate, over the base's step."""
    broken: bool = False
    """Whether the whole interval of the time ratio lies below the bound."""


TOGETHER = " + "
"""Between the names of levers that one trial tries together."""


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`lever` applied to `base`, and measured against it in pairs."""

    id: str
    lever: str
    base: LeverCase
    candidate: LeverCase
    environment_key: str
    stage: Literal["refused", "screened", "confirmed"]
    """`refused`: the lever cannot apply here, or its numerics forbid it. Nothing was timed."""
    verdict: TrialVerdict
    """`kept`: a confirmed gain. `Study.steps` says whether its lever is in the best composition."""
    reason: str
    status: Status = "ok"
    """`ok`, or the status of the arm that failed."""
    pairs: tuple[Pair, ...] = ()
    time_ratio: Interval | None = None
    """Candidate's step time over base's; below 1 is faster. It is a t-interval on the logarithm, with the
    process as the unit where there are several."""
    base_peak_bytes: int | None = None
    candidate_peak_bytes: int | None = None
    numerics: NumericsVerdict | None = None
    wall_s: float = 0.0
    foretold: Foretold | None = None
    """None in trials older than this field, and where nothing was to be timed."""
    bound: Bound | None = None
    """None where no bound is known, and in screenings, which keep nothing."""
    judged_by: Literal["time", "memory", "energy"] = "time"
    """The quantity that the verdict is about."""
    doubts: tuple[str, ...] | None = None
    """Reasons why the times may be unreliable; `reason` repeats them. None in trials older than this
    field."""
    energy_ratio: Interval | None = None
    """Candidate's energy of a step over base's, like `time_ratio`. None where energy was not counted."""
    ended_by: EndedBy = "case"
    """Who ended an arm that failed. Unless it is the case, the trial says nothing about its lever."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended an arm of it."""
        return self.ended_by == "user"

    @property
    def levers(self) -> tuple[str, ...]:
        """The names of the levers that it tries."""
        return tuple(self.lever.split(TOGETHER))

    @property
    def ratio(self) -> Interval | None:
        """Candidate over base in the quantity that it was judged by; below 1 is better."""
        if self.judged_by == "energy":
            return self.energy_ratio
        if self.judged_by == "time":
            return self.time_ratio
        if not self.base_peak_bytes or self.candidate_peak_bytes is None:
            return None
        ratio = self.candidate_peak_bytes / self.base_peak_bytes
        return Interval(estimate=ratio, low=ratio, high=ratio)


class Errors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Errors of predicted ratios, |measured / predicted − 1|, over the trials that have both."""

    n: int
    predicted: float
    """Median of the predicted ratios, candidate over base."""
    measured: float
    """Median of the measured ones."""
    median: float
    p90: float
    """The 90th percentile of the errors."""


class LeverEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lever on one device."""

    lever: str
    """The lever's name, or "composition" for several at once."""
    device: str
    """The device's name from the driver."""
    n_trials: int
    """Trials that ran something. Each comparison counts once."""
    n_kept: int
    n_rejected: int
    n_inconclusive: int
    n_numerics_held: int
    n_numerics_violated: int
    """The numbers of the other trials were not checked."""
    time: Errors | None = None
    n_within: int = 0
    """Trials of `time` whose measured ratio lies within the predicted interval."""
    n_decided: int = 0
    """Trials of `time` that are more than 1% faster or slower, with an interval that excludes 1."""
    n_sign_right: int = 0
    """Decided trials whose predicted ratio lies on the same side of 1 as the measured one."""
    memory: Errors | None = None


class Miss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trial whose predicted time is far from the measured one."""

    trial: str
    """The trial's id."""
    lever: str
    device: str
    base: LeverCase
    verdict: TrialVerdict
    predicted: Interval
    measured: Interval
    error: float
    """Measured over predicted ratio, minus 1."""
    within: bool


class Unpredicted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Trials whose time was not predicted, grouped by the reason."""

    reason: str
    n: int


class LeverLedger(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All trials of some databases and files."""

    ROWS: ClassVar[tuple[str, ...]] = ("entries",)

    sources: tuple[str, ...]
    n_trials: int
    entries: tuple[LeverEntry, ...]
    """Sorted by device, then by lever."""
    worst: tuple[Miss, ...]
    """The largest errors of time, largest first."""
    unpredicted: tuple[Unpredicted, ...]
    """The most frequent first."""
    impossible: tuple[str, ...] = ()
    """The ids of trials that measured faster than their bound allows."""
