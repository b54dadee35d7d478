"""The kernels that take most, that run most often, and that are no matmuls."""

from collections.abc import Callable, Iterator, Sequence

from peakward.records.profile import CaseProfile, Group
from peakward.records.study import Cell as TableCell
from peakward.records.study import Column, Table
from peakward.studies.cases import place
from peakward.studies.kernels.grid import Cell
from peakward.studies.kernels.shares import MATMUL, MOVED, PHASES, work_ns
from peakward.studies.readings import ratio

TOP = 5
"""Of each phase of a case."""
NS = 1e-9


def by_time(cells: Sequence[Cell], work: str) -> tuple[Table, ...]:
    """The longest in total of each phase, a table for each case."""
    return _tables(f"the {TOP} {work}s of each phase that take most", work, cells, _any, _total)


def by_instances(cells: Sequence[Cell], work: str) -> tuple[Table, ...]:
    """The most often run of each phase."""
    return _tables(f"the {TOP} {work}s of each phase that run most", work, cells, _any, _n)


def not_matmuls(cells: Sequence[Cell], work: str) -> tuple[Table, ...]:
    """The longest in total of each phase, matmuls left out."""
    title = f"the {TOP} {work}s of each phase that take most and are no matmuls"
    return _tables(title, work, cells, lambda each: each.category != MATMUL, _total)


def longest(found: CaseProfile, of: Callable[[Group], bool]) -> Group | None:
    """The kernel that takes most in one phase, of those that `of` takes."""
    kernels = [each for each in found.profile.kernels if each.category != MOVED and of(each)]
    return max(kernels, key=_total, default=None)


def _any(_group: Group) -> bool:
    return True


def _total(group: Group) -> int:
    return group.total_ns


def _n(group: Group) -> int:
    return group.n


def _tables(
    what: str,
    work: str,
    cells: Sequence[Cell],
    of: Callable[[Group], bool],
    rank: Callable[[Group], int],
) -> tuple[Table, ...]:
    return tuple(
        Table(
            title=f"{place(cell.case)}: {what}",
            columns=(
                Column(name=work, unit="name"),
                Column(name="phase"),
                Column(name="category"),
                Column(name="n", unit="count"),
                Column(name="total", unit="s"),
                Column(name="share of the phase", unit="share"),
                *(Column(name=name, unit="s") for name in ("mean", "median", "min", "max", "sd")),
            ),
            rows=tuple(_rows(cell.profile, of, rank)),
            note=f"Over {cell.profile.n_steps} profiled steps.",
        )
        for cell in cells
        if cell.profile is not None
    )


def _rows(
    found: CaseProfile,
    of: Callable[[Group], bool],
    rank: Callable[[Group], int],
) -> Iterator[tuple[TableCell, ...]]:
    for phase in PHASES:
        inside = [
            each
            for each in found.profile.kernels
            if each.phase == phase and each.category != MOVED and of(each)
        ]
        whole_ns = work_ns(found.profile, (phase,))
        for each in sorted(inside, key=rank, reverse=True)[:TOP]:
            spread = (each.mean_ns, each.median_ns, each.min_ns, each.max_ns, each.std_ns)
            yield (
                each.name,
                phase,
                each.category,
                each.n,
                each.total_ns * NS,
                ratio(each.total_ns, whole_ns),
                *(time_ns * NS for time_ns in spread),
            )
