"""Groups of work: how often each kind ran, how long, and its share of the time."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from peakward.traces.table import Ints

Floats = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)


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
