"""The grid of `data-loading`: a train step on resident tokens, and fed by each loader."""

from collections.abc import Iterator
from itertools import product
from statistics import fmean
from typing import get_args

import msgspec

from peakward.catalogue.feeding import MOST_WORKERS
from peakward.records.case import ModelCase
from peakward.records.data import Sampler, Source, TextData, Tokenise
from peakward.records.feeding import Feeding
from peakward.records.measurement import Interval, Measurement
from peakward.records.protocol import Protocol
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


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A step fed by a loader, beside the same on resident tokens."""

    case: ModelCase
    measurement: Measurement | None
    base: Measurement | None

    @property
    def data(self) -> TextData:
        """How it is fed."""
        assert self.case.workload.data is not None
        return self.case.workload.data

    @property
    def feeding(self) -> Feeding | None:
        """None unless the case ended `ok`."""
        return None if self.measurement is None else self.measurement.feeding

    @property
    def step_s(self) -> Interval | None:
        """The mean; None unless the case ended `ok`."""
        return mean_s(self.measurement)

    @property
    def over_resident(self) -> float | None:
        """Mean step time over that of the same step on resident tokens."""
        base = mean_s(self.base)
        return None if base is None or self.step_s is None else self.step_s.estimate / base.estimate

    @property
    def waited_s(self) -> float | None:
        """That the device waited for data in a step, on average: a GPU's idle time, a CPU's wait."""
        feeding = self.feeding
        if feeding is None:
            return None
        return fmean(feeding.wait_s if feeding.idle_s is None else feeding.idle_s)

    @property
    def waited_share(self) -> float | None:
        """Of the mean step."""
        return ratio(self.waited_s, None if self.step_s is None else self.step_s.estimate)

    @property
    def made_per_s(self) -> float | None:
        """Tokens a second that one process makes: known where the step itself makes its batches."""
        if self.feeding is None or self.data.n_workers:
            return None
        return ratio(self.case.workload.tokens_per_step, fmean(self.feeding.wait_s))


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Resident steps, size × sequence × tokenising × workers × copies, then samplers."""
    cases = (*_resident(setting), *_fed(setting), *_ranked(setting))
    return tuple((case, _protocol(setting)) for case in cases)


def read(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The fed steps, run or not."""
    return _cells(_fed(setting), readings, setting)


def read_ranked(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """Those of one rank of several."""
    return _cells(_ranked(setting), readings, setting)


def resident(case: ModelCase) -> ModelCase:
    """The same on tokens that lie on the device."""
    return with_work(case, data=None)


def tokenizer(setting: Setting) -> Source:
    """What was asked for, else byte pairs where their package is there, else bytes."""
    return setting.scope.tokenizer or Source("bpe" if setting.has_tokenizers else "bytes")


def _cells(cases: Iterator[ModelCase], readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    protocol = _protocol(setting)
    return tuple(
        Cell(
            case=case,
            measurement=readings.find((case, protocol)),
            base=readings.find((resident(case), protocol)),
        )
        for case in cases
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
