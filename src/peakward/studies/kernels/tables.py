"""What profiling cost, and which share of the time each category takes."""

from collections.abc import Sequence

from peakward.records.profile import CaseProfile
from peakward.records.study import Cell as TableCell
from peakward.records.study import Column, Table
from peakward.studies.cases import SIZE_COLUMNS, size_cells
from peakward.studies.kernels.grid import Cell, pairs
from peakward.studies.kernels.shares import (
    MATMUL,
    PASSES_BOTH,
    PHASES,
    category_ns,
    share_of,
    work_ns,
)
from peakward.studies.readings import median_s, ratio, status, verdict

NS = 1e-9


def times(cells: Sequence[Cell], work: str) -> Table:
    """Each case under the profiler and by the plain timer."""
    return Table(
        title="Under the profiler, and by the plain timer",
        columns=(
            *SIZE_COLUMNS,
            Column(name="status"),
            Column(name="plain step", unit="s"),
            Column(name="profiled step", unit="s"),
            Column(name="over the plain", unit="ratio"),
            Column(name=f"{work}s in a step", unit="s"),
            Column(name="verdict"),
        ),
        rows=tuple(
            (
                *size_cells(cell.case),
                status(cell.measurement),
                median_s(cell.measurement),
                None if cell.profile is None else cell.profile.profiled_step_s,
                cell.over_plain,
                _work_s(cell.profile),
                verdict(cell.measurement),
            )
            for cell in cells
        ),
        note="The plain step is the measured time. No other figure rests on a profiled step's.",
    )


def _work_s(found: CaseProfile | None) -> float | None:
    """None where the trace shows no work."""
    total_ns = 0 if found is None else work_ns(found.profile)
    return total_ns * NS / found.n_steps if found is not None and total_ns else None


def matmul_shares(cells: Sequence[Cell], work: str) -> Table:
    """Matmuls in inference, and in more and more of a training step."""
    return Table(
        title=f"Share of matmuls in {work} time",
        columns=(
            *SIZE_COLUMNS,
            *(
                Column(name=name, unit="share")
                for name in ("inference", "forward", "forward + backward", "whole step")
            ),
            Column(name="in no category", unit="share"),
        ),
        rows=tuple(
            (
                *size_cells(both.case),
                share_of(MATMUL, both.inference.profile),
                share_of(MATMUL, both.training.profile, ("forward",)),
                share_of(MATMUL, both.training.profile, PASSES_BOTH),
                share_of(MATMUL, both.training.profile),
                both.training.profile.unnamed_share,
            )
            for both in pairs(cells)
            if work_ns(both.training.profile)
        ),
        note="The last four are of the training step.",
    )


def categories(cells: Sequence[Cell], work: str) -> Table:
    """Each case's time by category and phase, the longest category first."""
    return Table(
        title=f"{work.capitalize()}s by category and phase",
        columns=(
            *SIZE_COLUMNS,
            Column(name="category"),
            *(Column(name=phase, unit="s") for phase in PHASES),
            Column(name="total", unit="s"),
            Column(name="share", unit="share"),
        ),
        rows=tuple(
            row
            for cell in cells
            if cell.profile is not None
            for row in _by_category(cell, cell.profile)
        ),
        note="Seconds a step.",
    )


def _by_category(cell: Cell, found: CaseProfile) -> list[tuple[TableCell, ...]]:
    by_phase = [category_ns(found.profile, (phase,)) for phase in PHASES]
    whole_ns = work_ns(found.profile)
    return [
        (
            *size_cells(cell.case),
            category,
            *(_a_step(each.get(category), found) for each in by_phase),
            _a_step(total_ns, found),
            ratio(total_ns, whole_ns),
        )
        for category, total_ns in category_ns(found.profile).items()
    ]


def _a_step(total_ns: int | None, found: CaseProfile) -> float | None:
    return None if total_ns is None else total_ns * NS / found.n_steps
