"""Finds the process of each piece of GPU work.

Kineto gives GPU work the device as its pid, so the process is that of the launching call.
"""

import numpy as np

from peakward.traces.readers.gathered import Rows
from peakward.traces.table import NONE, HostKind, Indices, Ints


def launching_processes(host: Rows, gpu: Rows, process_of_thread: Indices) -> Indices:
    """For each row of `gpu` a position among the processes; NONE where no call tells.

    A file of one process needs no calls for this. In a file merged from several, ids of launches repeat: the
    latest call with the work's id that started no later counts.
    """
    calls = host["kind"] == HostKind.CALL
    threads = np.unique(host["thread"][calls] if calls.any() else host["thread"])
    launchers = np.unique(process_of_thread[threads])
    n_gpu = len(gpu["start_ns"])
    if len(launchers) <= 1:
        return np.full(n_gpu, launchers[0] if len(launchers) else NONE, np.int32)
    found = _latest_call(
        host["correlation"][calls], host["start_ns"][calls], gpu["correlation"], gpu["start_ns"]
    )
    of_call = process_of_thread[host["thread"][calls]]
    # NONE is the last position, so that it stands for itself.
    return np.append(of_call, NONE)[found].astype(np.int32)


def _latest_call(
    call_ids: Ints,
    call_starts: Ints,
    work_ids: Ints,
    work_starts: Ints,
) -> Ints:
    """The position of each work's call; NONE where there is none."""
    n_calls = len(call_ids)
    ids = np.concatenate([call_ids, work_ids])
    starts = np.concatenate([call_starts, work_starts])
    is_work = np.arange(len(ids)) >= n_calls
    order = np.lexsort((is_work, starts, ids))
    place = np.arange(len(ids))
    last_call = np.maximum.accumulate(np.where(is_work[order], NONE, place))
    same = (last_call != NONE) & (ids[order][last_call] == ids[order]) & (ids[order] != NONE)
    found = np.full(len(ids), NONE)
    found[order] = np.where(same, order[last_call], NONE)
    return found[n_calls:]
