"""Steps whose sequence length changes, against padding them to one length."""

from typing import Any

import msgspec

from peakward.records.case import ModelCase, Padding, Pass
from peakward.records.measurement import Measurement
from peakward.records.protocol import Protocol
from peakward.studies.cases import model_case, with_levers, with_work
from peakward.studies.compile.grid import seq_len
from peakward.studies.readings import Planned, Readings
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
