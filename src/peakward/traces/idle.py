"""How long each GPU was idle, and for which causes; `idle_causes` says what they are."""

import numpy as np

from peakward.records.profile import DeviceIdle, Idle
from peakward.traces.host_time import host_time
from peakward.traces.idle_causes import IdleCause
from peakward.traces.idle_gaps import Gaps, idle_gaps
from peakward.traces.table import Indices, Table


def idle(table: Table, launches: Indices) -> Idle:
    """Why each device was idle; `launches` is what `launch_rows` gives."""
    host = host_time(table)
    devices = tuple(
        _device_idle(int(device), idle_gaps(table, launches, host, int(device)))
        for device in np.unique(table.gpu.device)
    )
    return Idle(devices=devices, together=_added_up(devices))


def _device_idle(device: int, found: Gaps) -> DeviceIdle:
    lengths = found.end_ns - found.start_ns
    sums = found.pieces_ns.sum(axis=0)
    return DeviceIdle(
        device=device,
        n_gaps=len(lengths),
        idle_ns=int(lengths.sum()),
        by_cause_ns={cause.name.lower(): int(sums[cause]) for cause in IdleCause},
        longest_ns=int(lengths.max(initial=0)),
    )


def _added_up(devices: tuple[DeviceIdle, ...]) -> DeviceIdle:
    return DeviceIdle(
        device=None,
        n_gaps=sum(each.n_gaps for each in devices),
        idle_ns=sum(each.idle_ns for each in devices),
        by_cause_ns={
            cause: sum(each.by_cause_ns[cause] for each in devices)
            for cause in (cause.name.lower() for cause in IdleCause)
        },
        longest_ns=max((each.longest_ns for each in devices), default=0),
    )
