"""Groups of GPU work by name, category and phase, with their number, time and share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import KernelGroup, WorkPhase
from peakward.traces.category_rules import Category
from peakward.traces.host_work import is_of_host
from peakward.traces.kernel_names import short_name
from peakward.traces.phase_names import PhaseCode
from peakward.traces.row_categories import fused_ops
from peakward.traces.table import Codes, Ints, TraceTable

_CATEGORIES = tuple(Category)
_PHASES: tuple[WorkPhase, ...] = ("forward", "backward", "optimizer", "other")
"""In the order of PhaseCode."""
assert [each.name.lower() for each in PhaseCode] == list(_PHASES)


Labels = tuple[str, str | None, WorkPhase | None]
"""Name, category and phase of a group."""


def by_name(table: TraceTable, categories: Codes) -> tuple[KernelGroup, ...]:
    """A group for each name."""
    found = group(table.gpu.duration_ns, [table.gpu.name, categories])
    return _records(
        found,
        lambda key: (_shown(table, key[0]), _CATEGORIES[key[1]].value, None),
        lambda key: table.names[key[0]],
    )


def by_phase_and_name(
    table: TraceTable, categories: Codes, phases: Codes
) -> tuple[KernelGroup, ...]:
    """A group for each phase and name."""
    found = group(table.gpu.duration_ns, [phases, table.gpu.name, categories])
    return _records(
        found,
        lambda key: (
            _shown(table, key[1]),
            _CATEGORIES[key[2]].value,
            _PHASES[key[0]],
        ),
        lambda key: table.names[key[1]],
    )


def by_phase_and_category(
    table: TraceTable, categories: Codes, phases: Codes
) -> tuple[KernelGroup, ...]:
    """A group for each phase and category."""
    found = group(table.gpu.duration_ns, [phases, categories])
    return _records(
        found, lambda key: (_CATEGORIES[key[1]].value, _CATEGORIES[key[1]].value, _PHASES[key[0]])
    )


def by_phase(table: TraceTable, phases: Codes) -> tuple[KernelGroup, ...]:
    """A group for each phase."""
    found = group(table.gpu.duration_ns, [phases])
    return _records(found, lambda key: (_PHASES[key[0]], None, _PHASES[key[0]]))


def _shown(table: TraceTable, name: int) -> str:
    """A kernel's name without the compiler's additions. An operator's name is short and stays whole."""
    whole = table.names[name]
    return whole if is_of_host(table) else short_name(whole)


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """A row for each group of GPU work, the longest total first, ties in the order of their keys."""

    keys: NDArray[np.int64]
    """A column for each key, in the given order."""
    instances: Ints
    total_ns: Ints
    share: Floats
    """The share of the total of all groups; 0 where that total is 0."""
    mean_ns: Floats
    median_ns: Floats
    """The median; for an even number the mean of the middle two."""
    min_ns: Ints
    max_ns: Ints
    std_ns: Floats
    """The population standard deviation, because a trace holds every instance that ran while it was taken."""

    def __len__(self) -> int:
        return len(self.instances)


def _records(
    found: Groups,
    labels: Callable[[list[int]], Labels],
    full_name: Callable[[list[int]], str] | None = None,
) -> tuple[KernelGroup, ...]:
    columns = zip(
        found.keys.tolist(),
        found.instances.tolist(),
        found.total_ns.tolist(),
        found.share.tolist(),
        found.mean_ns.tolist(),
        found.median_ns.tolist(),
        found.min_ns.tolist(),
        found.max_ns.tolist(),
        found.std_ns.tolist(),
        strict=True,
    )
    groups = []
    for key, n, total, share, mean, median, least, most, std in columns:
        name, category, phase = labels(key)
        groups.append(
            KernelGroup(
                name=name,
                category=category,
                phase=phase,
                n=n,
                total_ns=total,
                share=share,
                mean_ns=mean,
                median_ns=median,
                min_ns=least,
                max_ns=most,
                std_ns=std,
                fused=() if full_name is None else fused_ops(full_name(key)),
            )
        )
    return tuple(groups)


T = TypeVar("T", bound=np.generic)


def group(duration_ns: Ints, keys: Sequence[NDArray[np.integer]]) -> Groups:
    """Group the rows with equal keys. There is at least one key, and each is as long as the durations."""
    order = np.lexsort((duration_ns, *reversed(keys)))
    duration = duration_ns[order]
    columns = np.stack([np.asarray(key, dtype=np.int64)[order] for key in keys], axis=1)
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (columns[1:] != columns[:-1]).any(axis=1)
    first = np.flatnonzero(is_first)
    instances = np.diff(np.append(first, len(order)))
    total = _sums(duration, first)
    mean = total / instances
    deviation = duration - np.repeat(mean, instances)
    longest_first = np.lexsort((np.arange(len(first)), -total))
    return _rows(
        Groups(
            keys=columns[first],
            instances=instances,
            total_ns=total,
            share=total / max(int(total.sum()), 1),
            mean_ns=mean,
            median_ns=(duration[first + (instances - 1) // 2] + duration[first + instances // 2])
            / 2,
            min_ns=duration[first],
            max_ns=duration[first + instances - 1],
            std_ns=np.sqrt(_sums(deviation**2, first) / instances),
        ),
        longest_first,
    )


def _rows(groups: Groups, rows: NDArray[np.integer]) -> Groups:
    return Groups(**{field.name: getattr(groups, field.name)[rows] for field in fields(groups)})


def _sums(values: NDArray[T], first: NDArray[np.intp]) -> NDArray[T]:
    """The sum of each run of values that begins at these positions. Integers stay exact."""
    return np.add.reduceat(values, first) if len(first) else values[:0]
