"""Peaks by phase and category, activations by module, the largest allocations, predictions."""

from collections.abc import Sequence

from peakward.records.measurement import Phase
from peakward.records.memory import CaseMemory
from peakward.records.study import Cell as TableCell
from peakward.records.study import Column, Table
from peakward.report import step_clock
from peakward.studies.cases import SIZE_COLUMNS, size_cells
from peakward.studies.memory.grid import Cell, named, residual_bytes
from peakward.studies.readings import peak_bytes, ratio, status
from peakward.traces.memory.case_memory import PURPOSES, part

PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")
MOST_LARGE = 10
COLUMNS = (*SIZE_COLUMNS, Column(name="precision"))


def cells_of(cell: Cell) -> tuple[TableCell, ...]:
    """For `COLUMNS`."""
    return (*size_cells(cell.case), cell.case.configuration.precision)


def peaks(cells: Sequence[Cell]) -> Table:
    """The measured peak, and the recorded one of each phase of the second step."""
    return Table(
        title="Peak memory by phase",
        columns=(
            *COLUMNS,
            Column(name="status"),
            Column(name="measured", unit="bytes"),
            *(Column(name=phase, unit="bytes") for phase in PHASES),
            Column(name="recorded", unit="bytes"),
            Column(name="reserved", unit="bytes"),
        ),
        rows=tuple(
            (
                *cells_of(cell),
                status(cell.measurement),
                peak_bytes(cell.measurement),
                *(_phase_bytes(cell.memory, phase) for phase in PHASES),
                None if cell.memory is None else cell.memory.peak_bytes,
                None if cell.memory is None else cell.memory.reserved_bytes,
            )
            for cell in cells
        ),
        note="Measured and recorded are from the case's building on, phases of its second step.",
    )


def _phase_bytes(memory: CaseMemory | None, phase: Phase) -> int | None:
    phases = () if memory is None else memory.phases
    return next((each.allocated_bytes for each in phases if each.phase == phase), None)


def purposes(cells: Sequence[Cell]) -> Table:
    """What the recorded step's peak is made of, by the categories that occur."""
    known = [(cell, cell.peak) for cell in cells if cell.peak is not None]
    held = [{each.name: each.n_bytes for each in peak.purposes} for _, peak in known]
    occurring = [name for name in PURPOSES if any(name in each for each in held)]
    return Table(
        title="What is held at the peak of a step",
        columns=(
            *COLUMNS,
            Column(name="peak in"),
            *(Column(name=name.replace("_", " "), unit="bytes") for name in occurring),
        ),
        rows=tuple(
            (*cells_of(cell), peak.phase, *(each.get(name) for name in occurring))
            for (cell, peak), each in zip(known, held, strict=True)
        ),
    )


def residual(cells: Sequence[Cell]) -> Table:
    """What a block keeps for backward, in activations of the residual stream."""
    return Table(
        title="One activation of the residual stream, and what a block keeps",
        columns=(
            *COLUMNS,
            Column(name="one activation", unit="bytes"),
            Column(name="a block keeps", unit="bytes"),
            Column(name="over one activation", unit="ratio"),
        ),
        rows=tuple(
            (
                *cells_of(cell),
                residual_bytes(cell.case),
                kept := block_bytes(cell),
                ratio(kept, residual_bytes(cell.case)),
            )
            for cell in cells
            if cell.case.workload.trains and cell.memory is not None
        ),
        note="batch × seq_len × d_model in the parameters' type; what blocks keep is recorded.",
    )


def block_bytes(cell: Cell) -> float | None:
    """Activations made in blocks, the mean of one."""
    if cell.memory is None:
        return None
    inside = sum(each.n_bytes for each in cell.memory.modules if each.module.startswith("blocks."))
    return inside / cell.case.model.n_layers


def by_part(memory: CaseMemory) -> dict[str, tuple[int, int]]:
    """Number and bytes of activations by what is alike in all blocks, the greatest first."""
    found: dict[str, tuple[int, int]] = {}
    for each in memory.modules:
        n, n_bytes = found.get(part(each.module), (0, 0))
        found[part(each.module)] = (n + each.n, n_bytes + each.n_bytes)
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def modules(cells: Sequence[Cell]) -> tuple[Table, ...]:
    """Activations of one step by the module that made them."""
    return tuple(
        Table(
            title=f"{named(cell)}: activations by module",
            columns=(
                Column(name="module", unit="name"),
                Column(name="n", unit="count"),
                Column(name="activations", unit="bytes"),
                Column(name="share", unit="share"),
            ),
            rows=tuple(
                (name or "outside of modules", n, n_bytes, ratio(n_bytes, cell.activations_bytes))
                for name, (n, n_bytes) in by_part(cell.memory).items()
            ),
            note="The innermost module that ran; * stands for every block.",
        )
        for cell in cells
        if cell.memory is not None
    )


def largest(cells: Sequence[Cell]) -> tuple[Table, ...]:
    """The largest allocations that a step holds at any time."""
    return tuple(
        Table(
            title=f"{named(cell)}: the largest allocations",
            columns=(
                Column(name="each", unit="bytes"),
                Column(name="n", unit="count"),
                Column(name="for"),
                Column(name="made in"),
                Column(name="module", unit="name"),
                Column(name="line", unit="name"),
            ),
            rows=tuple(
                (
                    each.n_bytes,
                    each.n,
                    each.purpose.replace("_", " "),
                    each.made_in,
                    each.part or None,
                    each.source,
                )
                for each in cell.memory.largest[:MOST_LARGE]
            ),
            note="Lines are those of Python that a GPU's allocator saw; the backward pass has none.",
        )
        for cell in cells
        if cell.memory is not None
    )


def clocks(cells: Sequence[Cell]) -> tuple[Table, Table]:
    """The peak of each phase on the clock of the kernels, and how far the host was ahead."""
    known = [(cells_of(cell), cell.memory) for cell in cells if cell.memory is not None]
    return (
        Table(
            title=step_clock.PEAKS_TITLE,
            columns=(*COLUMNS, *step_clock.PEAK_COLUMNS),
            rows=tuple((*of, *row) for of, each in known for row in step_clock.peak_rows(each)),
            note=step_clock.PEAKS_NOTE,
        ),
        Table(
            title=step_clock.QUEUE_TITLE,
            columns=(*COLUMNS, *step_clock.QUEUE_COLUMNS),
            rows=tuple((*of, *row) for of, each in known for row in step_clock.queue_rows(each)),
            note=step_clock.QUEUE_NOTE,
        ),
    )


def predicted(cells: Sequence[Cell]) -> Table:
    """The closed form beside what was held."""
    return Table(
        title="Predicted beside held",
        columns=(
            *COLUMNS,
            Column(name="predicted", unit="bytes"),
            Column(name="held", unit="bytes"),
            Column(name="predicted over held", unit="ratio"),
        ),
        rows=tuple(
            (*cells_of(cell), cell.predicted_bytes, cell.actual_bytes, cell.predicted_over_actual)
            for cell in cells
            if cell.actual_bytes is not None
        ),
        note="On a GPU as measured, on a CPU as recorded in the phase of the predicted peak.",
    )
