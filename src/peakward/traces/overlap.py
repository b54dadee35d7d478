"""Communication that no compute hides, by kernel."""

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import Collective
from peakward.traces.breakdown import busy
from peakward.traces.intervals import Intervals, subtract, total
from peakward.traces.selection import rows_of_each
from peakward.traces.table import GpuKind, Table


def collectives(table: Table, communication: NDArray[np.bool_]) -> tuple[Collective, ...]:
    """The collectives, most exposed first. `communication` marks the rows of `table.gpu` that are
    collectives."""
    gpu, kernel = table.gpu, table.gpu.kind == GpuKind.KERNEL
    compute = rows_of_each(gpu.device, np.flatnonzero(kernel & ~communication))
    computing = {device: busy(gpu, rows) for device, rows in compute.items()}
    found = [
        _collective(table, name, rows, computing)
        for name, rows in rows_of_each(gpu.name, np.flatnonzero(kernel & communication)).items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.exposed_ns, -each.sum_ns, each.name)))


def _collective(
    table: Table, name: int, rows: NDArray[np.intp], computing: dict[int, Intervals]
) -> Collective:
    gpu = table.gpu
    united_ns = exposed_ns = 0
    for device, here in rows_of_each(gpu.device, rows).items():
        ran = busy(gpu, here)
        united_ns += total(ran)
        alone = subtract(ran, computing[device]) if device in computing else ran
        exposed_ns += total(alone)
    durations = gpu.duration_ns[rows]
    return Collective(
        name=table.names[name],
        n=len(durations),
        sum_ns=int(durations.sum()),
        united_ns=united_ns,
        exposed_ns=exposed_ns,
        longest_ns=int(durations.max()),
    )
