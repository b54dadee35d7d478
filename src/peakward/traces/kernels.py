"""Tables of kernels: how often each kind of work ran, how long, and what share of the time it took."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from peakward.traces.phase_names import PhaseCode
from peakward.traces.table import Codes, Ints

Floats = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """A row for each group of GPU work, longest in total first, ties by their keys."""

    keys: NDArray[np.int64]
    """A column for each key, in the order in which the keys were given."""
    instances: Ints
    total_ns: Ints
    share: Floats
    """Of the total of all the groups; 0 where that is 0."""
    mean_ns: Floats
    median_ns: Floats
    """The mean of the middle two where their number is even."""
    min_ns: Ints
    max_ns: Ints
    std_ns: Floats
    """Of the population: a trace holds every instance that ran while it was taken."""

    def __len__(self) -> int:
        return len(self.instances)


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """All the groups that a table leaves out, in one row."""

    groups: int
    instances: int
    total_ns: int
    share: float


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The time that some kernels took of the time of all."""

    part_ns: int
    whole_ns: int

    @property
    def share(self) -> float | None:
        """None where nothing ran."""
        return self.part_ns / self.whole_ns if self.whole_ns else None


class PhaseShares(msgspec.Struct, frozen=True, kw_only=True):
    """What some kernels, such as the matmuls, take of the kernel time of more and more of a step."""

    forward: Share
    forward_backward: Share
    step: Share
    """Of everything: optimizer and what belongs to no phase too."""


def group(duration_ns: Ints, keys: Sequence[NDArray[np.integer]]) -> Groups:
    """The rows with equal keys, together; at least one key, each as long as the durations."""
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


def top(groups: Groups, n: int) -> tuple[Groups, Rest]:
    """The first `n` rows, and the rest in one."""
    head, tail = np.arange(len(groups))[:n], np.arange(len(groups))[n:]
    rest = Rest(
        groups=len(tail),
        instances=int(groups.instances[tail].sum()),
        total_ns=int(groups.total_ns[tail].sum()),
        share=float(groups.share[tail].sum()),
    )
    return _rows(groups, head), rest


def phase_shares(duration_ns: Ints, phase: Codes, part: NDArray[np.bool_]) -> PhaseShares:
    """The share of the kernels in `part`; `phase` has a PhaseCode for each kernel."""

    def share(phases: tuple[PhaseCode, ...]) -> Share:
        whole = np.isin(phase, phases)
        return Share(
            part_ns=int(duration_ns[whole & part].sum()), whole_ns=int(duration_ns[whole].sum())
        )

    return PhaseShares(
        forward=share((PhaseCode.FORWARD,)),
        forward_backward=share((PhaseCode.FORWARD, PhaseCode.BACKWARD)),
        step=share(tuple(PhaseCode)),
    )


def _rows(groups: Groups, rows: NDArray[np.integer]) -> Groups:
    return Groups(**{field.name: getattr(groups, field.name)[rows] for field in fields(groups)})


def _sums(values: NDArray[T], first: NDArray[np.intp]) -> NDArray[T]:
    """Of the runs that begin at these positions; integers stay exact."""
    return np.add.reduceat(values, first) if len(first) else values[:0]
