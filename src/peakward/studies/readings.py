"""Measurements and profiles, looked up by what was planned, and the figures read off them."""

from collections.abc import Iterable, Iterator

from peakward.prediction.flops import step_flops
from peakward.records.calibration import Calibration
from peakward.records.case import Case, ModelCase, StepCase
from peakward.records.measurement import CompileReport, Interval, Measurement, Protocol
from peakward.records.memory import CaseMemory
from peakward.records.profile import CaseProfile
from peakward.stats.summary import N_BATCHES, mean_interval

Planned = tuple[Case, Protocol]


class Readings:
    """The measurements, profiles and recorded memory that came of a plan: measurements are found by case
    and the protocol's identity, the others by case."""

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self._by_plan = {(each.case, each.protocol.identity): each for each in measurements}
        self._profiles: dict[Case, CaseProfile] = {}
        self._memory: dict[Case, CaseMemory] = {}
        self.calibration: Calibration | None = None
        """The calibration, in a study that measures the device itself."""

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._by_plan.values())

    def __len__(self) -> int:
        return len(self._by_plan)

    def add(self, measurement: Measurement) -> None:
        """Put in, in place of an earlier one of the same plan."""
        self._by_plan[measurement.case, measurement.protocol.identity] = measurement

    def find(self, planned: Planned) -> Measurement | None:
        """The measurement of a planned case, or None where it has not been run."""
        case, protocol = planned
        return self._by_plan.get((case, protocol.identity))

    @property
    def profiles(self) -> tuple[CaseProfile, ...]:
        """In the order in which they were made."""
        return tuple(self._profiles.values())

    def add_profile(self, profile: CaseProfile) -> None:
        """Put in, in place of an earlier one of the same case."""
        self._profiles[profile.case] = profile

    def profile(self, case: Case) -> CaseProfile | None:
        """The profile of a case, or None where it has none."""
        return self._profiles.get(case)

    @property
    def memory(self) -> tuple[CaseMemory, ...]:
        """Returns what was recorded of the memory of cases, in the order in which it was."""
        return tuple(self._memory.values())

    def add_memory(self, memory: CaseMemory) -> None:
        """Put in, in place of an earlier one of the same case."""
        self._memory[memory.case] = memory

    def memory_of(self, case: Case) -> CaseMemory | None:
        """Returns what was recorded of the memory of a case, or None where nothing was."""
        return self._memory.get(case)


def status(measurement: Measurement | None) -> str:
    """For a table: the status, or that the case was not run."""
    return "not run" if measurement is None else measurement.told


def time(measurement: Measurement | None) -> Interval | None:
    """Median step time in seconds, with its interval; None unless the case ended `ok`."""
    if measurement is None or measurement.status != "ok" or measurement.summary is None:
        return None
    return measurement.summary.median_s


def median_s(measurement: Measurement | None) -> float | None:
    """Median step time in seconds; None unless the case ended `ok`."""
    interval = time(measurement)
    return None if interval is None else interval.estimate


def step_s(measurement: Measurement | None) -> float | None:
    """Seconds a step: the median; the mean where lengths vary, since no one length is typical, and where
    a loader feeds, whose workers hand batches over in bursts."""
    if measurement is None or measurement.status != "ok" or measurement.summary is None:
        return None
    summary, work = measurement.summary, getattr(measurement.case, "workload", None)
    varies = work is not None and (work.varying_seq_lens or work.data is not None)
    return summary.mean_s if varies else summary.median_s.estimate


def mean_s(measurement: Measurement | None, *, n_batches: int = N_BATCHES) -> Interval | None:
    """Mean step time in seconds, with an interval by batches, which holds where steps depend on one another;
    None unless the case ended `ok`, with at least two steps a batch."""
    if measurement is None or measurement.status != "ok" or not measurement.runs:
        return None
    return mean_interval(measurement.runs[0].steps_s, n_batches=n_batches)


def compile_report(measurement: Measurement | None) -> CompileReport | None:
    """Returns what torch.compile did; None where nothing is compiled, or the case did not end `ok`."""
    if measurement is None or measurement.status != "ok":
        return None
    return measurement.compile


def start_s(measurement: Measurement | None) -> float | None:
    """Returns the seconds that a fresh process takes before it is steady. None unless the case ended `ok`.

    For a fixed shape it is the compile time. For changing lengths it is what the warm-up, in whole cycles,
    takes beyond as many steady cycles; compilations and captures are in it.
    """
    made = measurement
    if made is None or made.status != "ok" or made.summary is None or not made.runs:
        return None
    if not (isinstance(made.case, ModelCase) and made.case.workload.varying_seq_lens):
        return 0.0 if made.compile is None else made.compile.compile_s
    warmup = made.runs[0].warmup_s
    return max(0.0, sum(warmup) - len(warmup) * made.summary.mean_s)


def tokens_per_s(measurement: Measurement | None) -> float | None:
    """Tokens that count, per second of step time. None for an operator."""
    tokens = None if measurement is None else _tokens(measurement.case)
    return ratio(tokens, step_s(measurement))


def flops_per_s(measurement: Measurement | None) -> float | None:
    """Model FLOPs (recomputation not counted) per second of step time."""
    flops = None if measurement is None else step_flops(measurement.case)
    return ratio(flops, step_s(measurement))


def peak_bytes(measurement: Measurement | None) -> int | None:
    """Peak allocated bytes; None unless the case ended `ok`."""
    if measurement is None or measurement.status != "ok" or measurement.memory is None:
        return None
    return measurement.memory.peak_allocated_bytes


def verdict(measurement: Measurement | None) -> str | None:
    """stable, unstable or throttled; None where nothing was timed."""
    if measurement is None or measurement.validity is None:
        return None
    return measurement.validity.verdict


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient where both are known."""
    return None if numerator is None or not denominator else numerator / denominator


def distinct(first: Interval, second: Interval) -> bool:
    """Whether two intervals do not overlap: the weaker claim is then made of neither."""
    return first.high < second.low or second.high < first.low


def processes(*measurements: Measurement | None) -> str:
    """For behind an interval of times: within how many processes it is. One process's interval has none of
    what differs from process to process and from host to host: 16.9, 22.0 and 27.4 ms of one step that
    waits for its launches (three hosts of H100 and H200)."""
    known = {len(each.runs) for each in measurements if each is not None and each.runs}
    if not known:
        return ""
    if known == {1}:
        return " within one process" + (" of each" if len(measurements) > 1 else "")
    return f" over {min(known)} processes" + (" of each" if len(measurements) > 1 else "")


def _tokens(case: Case) -> float | None:
    if isinstance(case, StepCase):
        return case.tokens_per_step
    workload = getattr(case, "workload", None)
    return None if workload is None else workload.tokens_per_step
