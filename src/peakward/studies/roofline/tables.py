"""The tables of `roofline`: the roofs, the steps under them, and each operator's place."""

from collections.abc import Iterator, Sequence

from peakward.records.study import Cell as TableCell
from peakward.records.study import Column, Table
from peakward.studies.readings import median_s, ratio, status, verdict
from peakward.studies.roofline.cells import Cell, largest, profiled
from peakward.studies.roofline.places import Place
from peakward.studies.roofline.sums import (
    beside_layers_bytes,
    beside_layers_s,
    floor_s,
    moved_bytes,
    notable,
    placed_s,
    side_s,
    work_s,
)

CELL_COLUMNS = (
    Column(name="model"),
    Column(name="precision"),
    Column(name="fusion"),
    Column(name="batch", unit="count"),
)


def cell_cells(cell: Cell) -> tuple[TableCell, ...]:
    """Cells for `CELL_COLUMNS`."""
    return (cell.case.model.name, cell.precision, cell.fusion.name, cell.batch_size)


def roofs(cells: Sequence[Cell]) -> Table:
    """The roof of each precision."""
    found = {cell.precision: cell.on for cell in cells if cell.on is not None}
    return Table(
        title="Roofs",
        columns=(
            Column(name="precision"),
            Column(name="matmuls", unit="flops_per_s"),
            Column(name="bandwidth", unit="bytes_per_s"),
            Column(name="ridge (operations/byte)", unit="count"),
            Column(name="source"),
        ),
        rows=tuple(
            (
                precision,
                on.matmul_flops_per_s,
                on.bytes_per_s,
                ratio(on.matmul_flops_per_s, on.bytes_per_s),
                on.source,
            )
            for precision, on in found.items()
        ),
    )


def steps(cells: Sequence[Cell]) -> Table:
    """Each step beside the sum of its operators' least times."""
    return Table(
        title="Steps, and the sum of their operators under the roof",
        columns=(
            *CELL_COLUMNS,
            Column(name="status"),
            Column(name="step", unit="s"),
            Column(name="in operators", unit="s"),
            Column(name="of it placed", unit="share"),
            Column(name="least under the roof", unit="s"),
            Column(name="share of the roof", unit="share"),
            Column(name="right of the ridge", unit="share"),
            Column(name="verdict"),
        ),
        rows=tuple(
            (
                *cell_cells(cell),
                status(cell.measurement),
                median_s(cell.measurement),
                work_s(cell),
                ratio(placed_s(cell), work_s(cell)),
                floor_s(cell),
                ratio(floor_s(cell), placed_s(cell)),
                ratio(side_s(cell, "compute"), placed_s(cell)),
                verdict(cell.measurement),
            )
            for cell in cells
        ),
        note="The step is by the plain timer, the time in operators from the profile; the share of the "
        "roof is of what is placed. Not placed: calls that the closed form does not have, views and "
        "autograd's own on a host, and the driver's where it names none.",
    )


def operators(cells: Sequence[Cell]) -> tuple[Table, ...]:
    """The places at the largest batch of each precision and fusion."""
    return tuple(_operators(cell) for cell in largest(cells))


_OF_OPERATORS = (
    Column(name="operators", unit="name"),
    Column(name="calls", unit="count"),
    Column(name="operations", unit="flops"),
    Column(name="bytes", unit="bytes"),
    Column(name="operations/byte", unit="count"),
    Column(name="bound"),
    Column(name="measured", unit="s"),
    Column(name="share of time", unit="share"),
    Column(name="operations/s", unit="flops_per_s"),
    Column(name="share of the roof", unit="share"),
    Column(name="predicted", unit="s"),
    Column(name="measured over predicted", unit="ratio"),
)


def _operators(cell: Cell) -> Table:
    whole_s = work_s(cell)
    return Table(
        title=f"{cell.name}: its operators",
        columns=_OF_OPERATORS,
        rows=tuple(_operator(each, whole_s) for each in cell.places),
        note="A step's; calls are the closed form's. Bound: the side of the ridge. Predicted times are "
        "from one launch to the next, measured ones of the kernels alone.",
    )


def _operator(each: Place, whole_s: float | None) -> tuple[TableCell, ...]:
    return (
        each.kind,
        each.n_calls,
        each.operations,
        each.bytes,
        each.intensity,
        each.bound,
        each.measured_s,
        ratio(each.measured_s, whole_s),
        each.rate,
        each.roof_share,
        each.predicted_s,
        each.over_predicted,
    )


def batches(cells: Sequence[Cell]) -> Table:
    """What a larger batch does to each kind; empty where no setting has two."""
    groups = [each for each in _by_setting(profiled(cells)) if len(each) > 1]
    return Table(
        title="Operators by batch",
        columns=(
            *CELL_COLUMNS[:3],
            Column(name="operators", unit="name"),
            Column(name="batch", unit="count"),
            Column(name="operations/byte", unit="count"),
            Column(name="bound"),
            Column(name="share of the roof", unit="share"),
            Column(name="share of time", unit="share"),
        ),
        rows=tuple(row for group in groups for row in _by_batch(group)),
        note="Of the kinds that take a hundredth of the time or more at the largest batch.",
    )


def _by_batch(group: Sequence[Cell]) -> Iterator[tuple[TableCell, ...]]:
    for kind in (each.kind for each in notable(group[-1])):
        for cell in group:
            if (place := cell.place(kind)) is not None:
                yield (
                    *cell_cells(cell)[:3],
                    kind,
                    cell.batch_size,
                    place.intensity,
                    place.bound,
                    place.roof_share,
                    ratio(place.measured_s, work_s(cell)),
                )


def _by_setting(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells alike but for the batch, the smallest first."""
    groups: dict[tuple[TableCell, ...], list[Cell]] = {}
    for cell in sorted(cells, key=lambda each: each.batch_size):
        groups.setdefault(cell_cells(cell)[:3], []).append(cell)
    return list(groups.values())


def fusion(cells: Sequence[Cell]) -> Table:
    """Bytes and time of what is no product, by how much is fused."""
    return Table(
        title="What fusion moves",
        columns=(
            *CELL_COLUMNS,
            Column(name="operators a step", unit="count"),
            Column(name="bytes", unit="bytes"),
            Column(name="bytes but of linear layers", unit="bytes"),
            Column(name="their time", unit="s"),
            Column(name="step", unit="s"),
        ),
        rows=tuple(
            (
                *cell_cells(cell),
                sum(each.n_calls for each in cell.places),
                moved_bytes(cell),
                beside_layers_bytes(cell),
                beside_layers_s(cell),
                median_s(cell.measurement),
            )
            for cell in cells
            if cell.places
        ),
        note="Bytes are computed from the operators' shapes. Linear layers move the same however much "
        "around them is fused.",
    )
