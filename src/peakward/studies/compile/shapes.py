"""Steps whose sequence length changes, against padding them to one length."""

import math
from typing import Any

import msgspec

from peakward.records.case import ModelCase, Padding, Pass
from peakward.records.measurement import CompileReport, Interval, Measurement
from peakward.records.protocol import Protocol
from peakward.stats.batch_means import mean_interval
from peakward.studies.cases import model_case, with_levers, with_work
from peakward.studies.compile.grid import seq_len
from peakward.studies.readings import Planned, Readings, distinct
from peakward.studies.setting import Setting

EIGHTHS = (8, 3, 6, 1, 5, 2, 7, 4)
"""The lengths of a cycle, in eighths of the longest: all from short to long, out of order."""
N_CYCLES_WARMUP = 2
"""torch.compile recompiles with dynamic sizes at the second length, and graphs are captured at
each new one: the first cycle has them all, the second shows that they are over."""
N_CYCLES_TIMED = 4
ENGINES: dict[str, dict[str, Any]] = {
    "eager": {},
    "compile default": {"compile": "default"},
    "cuda-graphs": {"cuda_graphs": True},
}
PADDINGS: dict[str, Padding] = {"changing": "none", "padded": "to-seq-len"}


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """An engine under changing lengths, padded or not."""

    engine: str
    lengths: str
    """changing or padded."""
    case: ModelCase
    measurement: Measurement | None

    @property
    def start_s(self) -> float | None:
        """What a fresh process takes before it is steady: its warm-up, whole cycles, beyond what as many
        steady cycles take; compilations and captures are in it. None unless the case ended `ok`."""
        made = self.measurement
        if made is None or made.status != "ok" or made.summary is None or not made.runs:
            return None
        warmup = made.runs[0].warmup_s
        return max(0.0, sum(warmup) - len(warmup) * made.summary.mean_s)

    @property
    def mean_s(self) -> Interval | None:
        """The mean step, whose interval is of whole cycles: the lengths within one differ, and are known."""
        made = self.measurement
        if made is None or made.status != "ok" or not made.runs:
            return None
        return mean_interval(made.runs[0].steps_s, n_batches=N_CYCLES_TIMED)

    @property
    def compiles(self) -> bool:
        """Whether something is compiled or captured as it starts."""
        settings = self.case.configuration
        return settings.compile != "none" or settings.cuda_graphs

    @property
    def report(self) -> CompileReport | None:
        """What torch.compile did; None where nothing is compiled, or the case did not end `ok`."""
        made = self.measurement
        return made.compile if made is not None and made.status == "ok" else None


def steps_to_pay(dear: Cell, cheap: Cell) -> float | None:
    """Steps after which the one that takes longer to start has made up for it; 0 where it does not take
    longer, infinite where its mean step is not measurably shorter. None where either is not known."""
    starts, means = (dear.start_s, cheap.start_s), (dear.mean_s, cheap.mean_s)
    if starts[0] is None or starts[1] is None or means[0] is None or means[1] is None:
        return None
    saved_s = means[1].estimate - means[0].estimate
    if saved_s <= 0 or not distinct(means[0], means[1]):
        return math.inf
    return max(0.0, starts[0] - starts[1]) / saved_s


def cells(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """Every engine that runs here, over changing and padded lengths."""
    return tuple(
        Cell(
            engine=engine,
            lengths=lengths,
            case=case,
            measurement=readings.find((case, _protocol(setting))),
        )
        for engine, levers in ENGINES.items()
        for lengths, padding in PADDINGS.items()
        if setting.obstacle(case := _case(setting, padding, levers)) is None
    )


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Engine × padding, on the smallest size, where overheads weigh most."""
    return tuple((cell.case, _protocol(setting)) for cell in cells(Readings(), setting))


def _case(setting: Setting, padding: Padding, levers: dict[str, Any]) -> ModelCase:
    longest = seq_len(setting)
    # A CPU compiles a train step for a minute; the question is the same in a forward.
    pass_: Pass = "train_step" if setting.device == "cuda" else "forward"
    case = model_case(
        setting.grid.models[0], setting.grid.batch_size, longest, pass_, setting.device
    )
    lengths = tuple(max(1, longest * eighths // 8) for eighths in EIGHTHS)
    return with_levers(with_work(case, varying_seq_lens=lengths, padding=padding), **levers)


def _protocol(setting: Setting) -> Protocol:
    """Whole cycles, so that every length counts alike."""
    n_steps = N_CYCLES_TIMED * len(EIGHTHS)
    return setting.protocol(
        warmup_steps=N_CYCLES_WARMUP * len(EIGHTHS),
        min_steps=n_steps,
        max_steps=n_steps,
        phases=False,
        fresh_process=True,
    )
