"""The grid of `data-loading`: a train step on resident tokens, and fed by each loader."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from statistics import fmean
from typing import get_args

import msgspec

from peakward.levers.workload import MOST_WORKERS
from peakward.records.case import ModelCase, Sampler, Source, TextData, Tokenise
from peakward.records.lever import Pair
from peakward.records.measurement import Feeding, Interval, Measurement, Protocol
from peakward.stats.pairs import inverted, median_ratio, ratio_interval
from peakward.stats.summary import interval_of_means
from peakward.studies.cases import model_case, with_work
from peakward.studies.readings import Planned, Readings, mean_s, ratio
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting

TEXT = Source("python-topics")
"""It comes with Python, so that the study needs nothing but Peakward."""
MODES: tuple[Tokenise, ...] = ("cached", "on-the-fly")
WORKERS: dict[ScopeName, tuple[int, ...]] = {
    "small": (0, 2),
    "corners": (0, MOST_WORKERS),
    "full": (0, 2, 4, MOST_WORKERS),
}
PAGEABLE = (False, False)
PINNED = (True, False)
NON_BLOCKING = (True, True)
Copies = tuple[bool, bool]
"""Whether memory is pinned, and whether copies let the host go on."""
COPIES: dict[ScopeName, tuple[Copies, ...]] = {
    "small": (PAGEABLE, NON_BLOCKING),
    "corners": (PAGEABLE, NON_BLOCKING),
    "full": (PAGEABLE, PINNED, NON_BLOCKING),
}
N_RANKS = 4
WARMUP_STEPS = 2 * MOST_WORKERS + 8
"""More than the two batches that torch has each worker make ahead, so that timed steps take batches at
the rate at which they are made."""
MIN_STEPS = 30


TURNS = 3
"""Fed steps and resident ones are measured in so many turns, every second one backwards: one turn of an H100
gave fed steps at 0.78 to 0.91 of the resident ones' time, which is its host's noise and no loader's gain. A
turn has its own seed, which orders the text and draws the weights anew."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one way to feed a step over that of another, of the turns in which both were timed."""

    time: Interval
    """Over turns, paired in each; of one turn within its processes alone."""
    n_turns: int
    sources: tuple[Measurement, ...]

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval holds no 1."""
        return self.time.high < 1 or self.time.low > 1

    @property
    def speed(self) -> Interval:
        """The same as a factor of speed: above 1 is faster."""
        return inverted(self.time)

    @property
    def within(self) -> str:
        """Of what the interval is, for behind it."""
        return f" over {self.n_turns} turns" if self.n_turns > 1 else " within one process of each"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A step fed by a loader, beside the same on resident tokens, turn by turn."""

    case: ModelCase
    """Of the first turn."""
    turns: tuple[Measurement | None, ...]
    base_turns: tuple[Measurement | None, ...]

    @property
    def data(self) -> TextData:
        """How it is fed."""
        assert self.case.workload.data is not None
        return self.case.workload.data

    @property
    def measurement(self) -> Measurement | None:
        """The first that ended `ok`, else the first of all."""
        return _first(self.turns)

    @property
    def base(self) -> Measurement | None:
        """Of the resident step, as `measurement`."""
        return _first(self.base_turns)

    @property
    def feeding(self) -> Feeding | None:
        """Of the first turn that ended `ok`."""
        return None if self.measurement is None else self.measurement.feeding

    @property
    def step_s(self) -> Interval | None:
        """The mean; None where no turn ended `ok`."""
        return _mean_s(self.turns)

    @property
    def base_s(self) -> Interval | None:
        """The resident step's mean."""
        return _mean_s(self.base_turns)

    @property
    def over_resident(self) -> Ratio | None:
        """Mean step time over that of the same step on resident tokens."""
        return over(self.turns, self.base_turns)

    @property
    def waited_s(self) -> float | None:
        """That the device waited for data in a step, on average: a GPU's idle time, a CPU's wait."""
        return _mean_of(
            self.turns, lambda each: each.wait_s if each.idle_s is None else each.idle_s
        )

    @property
    def waited_share(self) -> float | None:
        """Of the mean step."""
        return ratio(self.waited_s, None if self.step_s is None else self.step_s.estimate)

    @property
    def host_waits_s(self) -> float | None:
        """In a step, on average."""
        return _mean_of(self.turns, lambda each: each.wait_s)

    @property
    def host_copies_s(self) -> float | None:
        """In a step, on average."""
        return _mean_of(self.turns, lambda each: each.copy_s)

    @property
    def idle_s(self) -> float | None:
        """Of a GPU in a step, on average; None on a CPU."""
        return _mean_of(self.turns, lambda each: each.idle_s)

    @property
    def made_per_s(self) -> float | None:
        """Tokens a second that one process makes: known where the step itself makes its batches."""
        if self.data.n_workers:
            return None
        return ratio(self.case.workload.tokens_per_step, self.host_waits_s)


def over(
    candidates: Sequence[Measurement | None], bases: Sequence[Measurement | None]
) -> Ratio | None:
    """Candidate's mean step time over base's, turn by turn; None where no turn has both."""
    both = [
        (candidate, base, candidate_s, base_s)
        for candidate, base in zip(candidates, bases, strict=True)
        if candidate is not None
        and base is not None
        and (candidate_s := mean_s(candidate)) is not None
        and (base_s := mean_s(base)) is not None
    ]
    if not both:
        return None
    sources = tuple(each for candidate, base, _, _ in both for each in (base, candidate))
    if len(both) == 1:
        ((_, _, candidate_s, base_s),) = both
        found = _of_one_turn(candidate_s, base_s)
    else:
        found = ratio_interval(
            [
                Pair(process=turn, base_s=base_s.estimate, candidate_s=candidate_s.estimate)
                for turn, (_, _, candidate_s, base_s) in enumerate(both)
            ]
        )
    return Ratio(time=found, n_turns=len(both), sources=sources)


def _of_one_turn(candidate_s: Interval, base_s: Interval) -> Interval:
    """As `median_ratio` has it; of means so unsteady that their interval reaches 0, of no known width."""
    if min(candidate_s.low, base_s.low) <= 0:
        estimate = candidate_s.estimate / base_s.estimate
        return Interval(estimate=estimate, low=0.0, high=math.inf)
    return median_ratio(base_s, candidate_s)


def _first(turns: Sequence[Measurement | None]) -> Measurement | None:
    known = [each for each in turns if each is not None]
    return next((each for each in known if each.status == "ok"), known[0] if known else None)


def _mean_s(turns: Sequence[Measurement | None]) -> Interval | None:
    known = [found for each in turns if (found := mean_s(each)) is not None]
    if len(known) < 2:
        return known[0] if known else None
    return interval_of_means([each.estimate for each in known])


def _mean_of(
    turns: Sequence[Measurement | None],
    read: Callable[[Feeding], Sequence[float] | None],
) -> float | None:
    known = [
        found
        for each in turns
        if each is not None and each.feeding is not None and (found := read(each.feeding))
    ]
    return fmean(fmean(each) for each in known) if known else None


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Turn by turn resident steps, size × sequence × tokenising × workers × copies; then samplers."""
    once = (*_resident(setting), *_fed(setting))
    turns = (
        _in_turn(each, turn) for turn in range(TURNS) for each in once[:: -1 if turn % 2 else 1]
    )
    return tuple((case, _protocol(setting)) for case in (*turns, *_ranked(setting)))


def _in_turn(case: ModelCase, turn: int) -> ModelCase:
    return with_work(case, seed=turn)


def read(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The fed steps, run or not."""
    return _cells(_fed(setting), readings, setting, TURNS)


def read_ranked(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """Those of one rank of several, in one turn: what they read does not vary."""
    return _cells(_ranked(setting), readings, setting, 1)


def resident(case: ModelCase) -> ModelCase:
    """The same on tokens that lie on the device."""
    return with_work(case, data=None)


def tokenizer(setting: Setting) -> Source:
    """What was asked for, else byte pairs where their package is there, else bytes."""
    return setting.scope.tokenizer or Source("bpe" if setting.has_tokenizers else "bytes")


def _cells(
    cases: Iterator[ModelCase], readings: Readings, setting: Setting, n_turns: int
) -> tuple[Cell, ...]:
    def turns(case: ModelCase) -> tuple[Measurement | None, ...]:
        protocol = _protocol(setting)
        return tuple(readings.find((_in_turn(case, turn), protocol)) for turn in range(n_turns))

    return tuple(
        Cell(case=case, turns=turns(case), base_turns=turns(resident(case))) for case in cases
    )


def _resident(setting: Setting) -> Iterator[ModelCase]:
    """On a GPU as quick a step as torch's own parts make, since what a loader must keep up with is that."""
    scope, grid = setting.scope, setting.grid
    models, seq_lens = grid.models, grid.seq_lens
    if scope.name == "small":  # one case of the CPU's grid, the quickest
        models, seq_lens = scope.models or models[:1], scope.seq_lens or seq_lens[:1]
    quick = {"precision": "bf16-mixed", "attention": "sdpa", "optimizer": "adamw-fused"}
    settings = quick if setting.device == "cuda" else {}
    for shape, seq_len in product(models, seq_lens):
        yield model_case(shape, grid.batch_size, seq_len, "train_step", setting.device, **settings)


def _fed(setting: Setting) -> Iterator[ModelCase]:
    scope = setting.scope
    copies = COPIES[scope.name] if setting.device == "cuda" else (PAGEABLE,)
    workers = scope.workers or WORKERS[scope.name]
    for case, mode, (pinned, going_on), n in product(_resident(setting), MODES, copies, workers):
        data = TextData(
            text=scope.text or TEXT,
            tokenizer=tokenizer(setting),
            tokenise=mode,
            n_workers=n,
            pin_memory=pinned,
            non_blocking=going_on,
        )
        yield with_work(case, data=data)


def _ranked(setting: Setting) -> Iterator[ModelCase]:
    """Of the first size and length: what rank 0 of several reads, with a sampler per rank and without."""
    case = next(_resident(setting))
    for sampler in get_args(Sampler):
        data = TextData(
            text=setting.scope.text or TEXT,
            tokenizer=tokenizer(setting),
            n_ranks=N_RANKS,
            sampler=sampler,
        )
        yield with_work(case, data=data)


def _protocol(setting: Setting) -> Protocol:
    """Never ended early: what is steady is the mean over workers' bursts, not the median."""
    return setting.protocol(
        warmup_steps=WARMUP_STEPS, min_steps=MIN_STEPS, relative_half_width=0.0, phases=False
    )
