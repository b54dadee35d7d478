"""The larger batches of a composition, measured within what is left of the budget."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from peakward.levers.catalogue import lever
from peakward.prediction.planning.site import Site
from peakward.records.case import ModelCase
from peakward.records.errors import OutOfTimeError
from peakward.records.measurement import Measurement
from peakward.records.protocol import Protocol
from peakward.records.study import Study
from peakward.tune.batches import (
    CHECKPOINTING,
    conclusion,
    exceeds,
    fastest,
    larger,
    table,
    with_batch,
)
from peakward.tune.bench import Bench
from peakward.tune.ledger import Undone

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep

SMALLER = 0.9
"""The factor by which a batch shrinks that was predicted to fit and did not; it is tried once more."""


class Growth(NamedTuple):
    """The results of larger batches."""

    measured: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()


def grown(
    case: ModelCase,
    bench: Bench,
    sweep: "Sweep",
    protocol: Protocol,
    *,
    here: Site | None,
    max_memory_bytes: int | None,
) -> Growth:
    """The case at the largest batches of `batches.larger`, each in a fresh process; one that recomputes
    only where its numbers hold.

    Raises:
        KeyboardInterrupt: Ctrl-C; what was measured is stored.
    """
    recompute = lever(CHECKPOINTING)
    found = larger(
        case,
        here,
        may_checkpoint=bench.obstacle(recompute, case) is None,
        max_memory_bytes=max_memory_bytes,
    )
    measured: list[Measurement] = []
    for each in found.cases:
        recomputes = each.configuration != case.configuration
        if recomputes and not bench.holds(recompute, case):
            continue
        made = _measured(each, case, bench, sweep, protocol)
        measured += made
        if made and (made[-1].status == "oom" or exceeds(made[-1], max_memory_bytes)):
            size = int(SMALLER * each.workload.batch_size)
            measured += _measured(with_batch(each, size), case, bench, sweep, protocol)
    return Growth(tuple(measured), found.notes)


def _measured(
    larger_: ModelCase, case: ModelCase, bench: Bench, sweep: "Sweep", protocol: Protocol
) -> list[Measurement]:
    """One, or none where there is no time."""
    size = larger_.workload.batch_size
    arm_s = size / case.workload.batch_size * bench.costs.arm_s
    cost_s = bench.costs.start_s + arm_s + protocol.max_timed_s
    what = f"measuring batch size {size}"
    if not bench.ledger.affords(cost_s, what):
        return []
    sweep.workers.close()
    try:
        return [sweep.measure(larger_, protocol)]
    except OutOfTimeError:
        bench.ledger.skip(Undone(what, cost_s=cost_s))
        return []


def entered(
    study: Study,
    growth: Growth,
    to_command: Callable[[ModelCase], str | None],
    max_memory_bytes: int | None,
) -> Study:
    """The study with the larger batches, and the command of the one with the most tokens/s."""
    every = (*study.measurements, *growth.measured)
    best = fastest(every, max_memory_bytes)
    said = conclusion(best, every[0])
    command = study.best_command
    if best is not None and best in growth.measured and isinstance(best.case, ModelCase):
        command = to_command(best.case)
    shown = bool(growth.measured)
    return msgspec.structs.replace(
        study,
        measurements=every,
        tables=(*study.tables, *((table(every),) if shown else ())),
        conclusions=(*study.conclusions, *((said,) if shown and said else ())),
        best_command=command,
        notes=(*study.notes, *growth.notes),
    )
