"""Communication that nothing hides, by kernel."""

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import Collective
from peakward.traces.breakdown import busy
from peakward.traces.intervals import subtract, total
from peakward.traces.table import GpuKind, Table


def collectives(table: Table, communication: NDArray[np.bool_]) -> tuple[Collective, ...]:
    """The most exposed first; `communication` marks the rows of `table.gpu` that are collectives."""
    rows = communication & (table.gpu.kind == GpuKind.KERNEL)
    compute = ~communication & (table.gpu.kind == GpuKind.KERNEL)
    found = [
        _collective(table, int(name), rows & (table.gpu.name == name), compute)
        for name in np.unique(table.gpu.name[rows])
    ]
    return tuple(sorted(found, key=lambda each: (-each.exposed_ns, -each.sum_ns, each.name)))


def _collective(
    table: Table, name: int, rows: NDArray[np.bool_], compute: NDArray[np.bool_]
) -> Collective:
    gpu = table.gpu
    united_ns = exposed_ns = 0
    for device in np.unique(gpu.device[rows]):
        here = gpu.device == device
        ran = busy(gpu, rows & here)
        united_ns += total(ran)
        exposed_ns += total(subtract(ran, busy(gpu, compute & here)))
    durations = gpu.duration_ns[rows]
    return Collective(
        name=table.names[name],
        n=len(durations),
        sum_ns=int(durations.sum()),
        united_ns=united_ns,
        exposed_ns=exposed_ns,
        longest_ns=int(durations.max()),
    )
