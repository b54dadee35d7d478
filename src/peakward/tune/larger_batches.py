"""Measures larger batches of a composition where tokens/s are sought, within what is left of the budget.

The step's memory grows with the batch while parameters, their gradients and moments do not, so what
saves activations buys batch: checkpointing is tried at its own largest batch too, though at the same
batch it only costs time.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from peakward.levers.catalogue import lever, pull
from peakward.prediction.planning.forecast import CAPTURED_SHARE, COMPILED_SHARE, largest_batch_size
from peakward.prediction.planning.site import Site
from peakward.records.case import ModelCase
from peakward.records.errors import OutOfTimeError, PeakwardError
from peakward.records.measurement import Measurement, Protocol
from peakward.records.study import Cell, Column, Conclusion, Evidence, Study, Table
from peakward.report.cases import label
from peakward.report.format import format_cell
from peakward.report.run.sections import BATCHES_TITLE
from peakward.tune.bench import Bench
from peakward.tune.ledger import Undone

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep

CHECKPOINTING = "checkpointing"


class Larger(NamedTuple):
    """Cases to measure, and why others are not."""

    cases: tuple[ModelCase, ...]
    notes: tuple[str, ...]


def larger(
    case: ModelCase, here: Site | None, *, may_checkpoint: bool, max_memory_bytes: int | None
) -> Larger:
    """The case at the largest batch that is predicted to fit, with checkpointing too where that fits
    more; none below twice the tokens of a step, for less is within what one batch hides.

    Of a CUDA graph and of compiled code whose memory is not predicted: the largest batch of the same
    case uncompiled in a memory that such steps never exceeded by their ratio to eager ones.
    """
    if here is None or case.device != "cuda":
        reason = "the memory of a step is predicted on a catalogued GPU alone"
        return Larger((), (f"Larger batches were not tried: {reason}.",))
    recomputed = pull(lever(CHECKPOINTING), case)
    arms = [case, *([recomputed] if may_checkpoint and recomputed != case else [])]
    found: list[ModelCase] = []
    notes: list[str] = []
    most = case.workload.batch_size
    for arm in arms:
        try:
            size = _largest(arm, here, max_memory_bytes)
        except PeakwardError as refusal:
            notes.append(f"No larger batch was tried of {label(arm)}: {refusal}.")
            continue
        if size > max(most, 2 * case.workload.batch_size - 1):
            found.append(with_batch(arm, size))
            most = size
    if not found and not notes:
        notes.append("No batch twice as large is predicted to fit.")
    return Larger(tuple(found), tuple(notes))


def with_batch(case: ModelCase, size: int) -> ModelCase:
    """The same work on so many sequences."""
    workload = msgspec.structs.replace(case.workload, batch_size=size)
    return msgspec.structs.replace(case, workload=workload)


def _largest(case: ModelCase, here: Site, max_memory_bytes: int | None) -> int:
    limits = [each for each in (case.memory_limit_bytes, max_memory_bytes) if each is not None]
    limit = here.limit_bytes(min(limits, default=None))
    try:
        return largest_batch_size(_limited(case, limit), here)
    except PeakwardError:
        settings = case.configuration
        if settings.compile == "none" and not settings.cuda_graphs:
            raise
        share = (CAPTURED_SHARE if settings.cuda_graphs else COMPILED_SHARE)[1]
        eager = msgspec.structs.replace(settings, compile="none", cuda_graphs=False)
        plain = msgspec.structs.replace(case, configuration=eager)
        return largest_batch_size(_limited(plain, round(limit / share)), here)


def _limited(case: ModelCase, limit_bytes: int) -> ModelCase:
    return msgspec.structs.replace(case, memory_limit_bytes=limit_bytes)


def table(measured: Sequence[Measurement]) -> Table:
    """The baseline, the best at its batch, and the larger batches."""
    return Table(
        title=BATCHES_TITLE,
        columns=(
            Column(name="batch size", unit="count"),
            Column(name="step", unit="s"),
            Column(name="tokens/s", unit="tokens_per_s"),
            Column(name="peak memory", unit="bytes"),
            Column(name="status"),
            Column(name="case", unit="name"),
        ),
        rows=tuple(_row(each) for each in measured if isinstance(each.case, ModelCase)),
        note="The largest batch that is predicted to fit, not every one below it. A batch of another "
        "size trains otherwise: whether the model learns as well is not measured.",
    )


def _row(found: Measurement) -> tuple[Cell, ...]:
    assert isinstance(found.case, ModelCase)
    return (
        found.case.workload.batch_size,
        found.summary.median_s.estimate if found.summary else None,
        tokens_per_s(found),
        found.memory.peak_allocated_bytes if found.memory else None,
        found.told,
        label(found.case),
    )


def tokens_per_s(found: Measurement) -> float | None:
    """None where it did not run."""
    if found.summary is None or not isinstance(found.case, ModelCase):
        return None
    return found.case.workload.tokens_per_step / found.summary.median_s.estimate


def fastest(
    measured: Sequence[Measurement], max_memory_bytes: int | None = None
) -> Measurement | None:
    """Returns the measurement with the most tokens/s among those that ran within that peak memory."""
    ran = [
        each
        for each in measured
        if tokens_per_s(each) is not None and not exceeds(each, max_memory_bytes)
    ]
    return max(ran, key=lambda each: tokens_per_s(each) or 0.0, default=None)


def exceeds(found: Measurement, max_memory_bytes: int | None) -> bool:
    """Whether its peak allocated memory is above the limit, where there is one."""
    if max_memory_bytes is None or found.memory is None:
        return False
    return found.memory.peak_allocated_bytes > max_memory_bytes


def conclusion(best: Measurement | None, base: Measurement) -> Conclusion | None:
    """The most tokens/s, against the baseline; None where one of the two did not run."""
    most, least = (None if each is None else tokens_per_s(each) for each in (best, base))
    if best is None or most is None or least is None or not isinstance(best.case, ModelCase):
        return None
    ids = (best.id, base.id)
    return Conclusion(
        text=f"Most tokens/s: {format_cell(most, 'tokens_per_s')} at a batch size of "
        f"{best.case.workload.batch_size}, {format_cell(most / least, 'ratio')} the baseline's, each "
        "measured once.",
        evidence=(
            Evidence(quantity="tokens/s", value=most, unit="tokens_per_s", from_ids=ids[:1]),
            Evidence(
                quantity="over the baseline's", value=most / least, unit="ratio", from_ids=ids
            ),
        ),
    )


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
