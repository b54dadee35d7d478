"""The copies and sets of a trace: direction, size and speed."""

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import Transfers
from peakward.traces.breakdown import busy
from peakward.traces.intervals import total
from peakward.traces.selection import rows_of_each
from peakward.traces.table import Direction, GpuKind, Table


def transfers(table: Table) -> tuple[Transfers, ...]:
    """Copies by direction, then sets; the longest total time first."""
    gpu = table.gpu
    found = [
        _transfers(
            table, direction.name.lower(), (gpu.kind == GpuKind.COPY) & (gpu.direction == direction)
        )
        for direction in Direction
    ]
    found.append(_transfers(table, "set", gpu.kind == GpuKind.SET))
    return tuple(sorted((each for each in found if each.n), key=lambda each: -each.sum_ns))


def _transfers(table: Table, what: str, rows: NDArray[np.bool_]) -> Transfers:
    gpu = table.gpu
    sized = rows & (gpu.n_bytes >= 0)
    n_bytes, sized_ns = int(gpu.n_bytes[sized].sum()), int(gpu.duration_ns[sized].sum())
    return Transfers(
        what=what,
        n=int(rows.sum()),
        n_bytes=n_bytes,
        largest_bytes=int(gpu.n_bytes[sized].max()) if sized.any() else None,
        sum_ns=int(gpu.duration_ns[rows].sum()),
        united_ns=sum(
            total(busy(gpu, here))
            for here in rows_of_each(gpu.device, np.flatnonzero(rows)).values()
        ),
        bytes_per_s=n_bytes * 1e9 / sized_ns if sized_ns else None,
    )
