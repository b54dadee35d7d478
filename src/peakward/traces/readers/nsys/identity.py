"""The processes, threads and GPUs behind the ids of an export.

A global id has, from the top, 8 bits of hardware, 8 of virtual machine, 24 of process and 24 of thread. A
process's own id has 0 for the thread (Nsight Systems' exporter documentation, "Serialized process and thread
identifiers").
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from peakward.traces.readers.nsys.database import Export
from peakward.traces.readers.nsys.intervals import joined
from peakward.traces.table import NONE, Device, Ints, Thread

_ID_BITS = 24
_ID = (1 << _ID_BITS) - 1
_INT32 = (1 << 31) - 1


def processes(of_gpu: Ints, threads: Ints) -> tuple[Ints, Ints, tuple[str, ...]]:
    """For each GPU row the position of its process, the global ids by position, and their labels.

    `of_gpu` holds global process ids or NONE, `threads` global thread ids. GPU work of an unknown process
    belongs to the only process, or to a separate one called "unknown".
    """
    known = np.unique(np.concatenate([of_gpu[of_gpu != NONE], threads & ~np.int64(_ID)]))
    positions = np.searchsorted(known, of_gpu)
    if (of_gpu == NONE).any():
        positions[of_gpu == NONE] = 0 if len(known) == 1 else len(known)
        if len(known) != 1:
            return positions, known, (*_labels(known), "unknown")
    return positions, known, _labels(known)


def _labels(known: Ints) -> tuple[str, ...]:
    """Process ids. Ids that several machines share have the machine added."""
    pids = ((known >> _ID_BITS) & _ID).tolist()
    n_machines = Counter(pids)
    machines = (known >> 2 * _ID_BITS).tolist()
    return tuple(
        f"{pid}" if n_machines[pid] == 1 else f"{pid} on {machine & 0xFFFF:#x}"
        for pid, machine in zip(pids, machines, strict=True)
    )


def threads(export: Export, ids: Ints, known: Ints) -> tuple[Ints, tuple[Thread, ...]]:
    """For each row the position of its thread, and the threads."""
    unique, positions = np.unique(ids, return_inverse=True)
    rows = joined(
        [each.integers for each in export.chunks("ThreadNames", ("globalTid", "nameId"))],
        ("globalTid", "nameId"),
    )
    name_ids = dict(zip(rows["globalTid"].tolist(), rows["nameId"].tolist(), strict=True))
    values = export.strings({name_ids[each] for each in unique.tolist() if each in name_ids})
    owners = np.searchsorted(known, unique & ~np.int64(_ID)).tolist()
    return positions, tuple(
        Thread(owner, str(each & _ID), values.get(name_ids.get(each, NONE)))
        for each, owner in zip(unique.tolist(), owners, strict=True)
    )


def devices(
    export: Export, ordinals: Ints, processes: Ints, known: Ints
) -> tuple[Ints, tuple[Device, ...]]:
    """For each GPU row the GPU's id, and the GPUs that have rows. `ordinals` are below 2**31.

    CUDA counts the GPUs that a process may see, so one ordinal is two GPUs in two processes with different
    CUDA_VISIBLE_DEVICES. TARGET_INFO_CUDA_DEVICE tells them apart; where it lacks a pair of process and
    ordinal, the ordinals stand for themselves.
    """
    pairs, places = np.unique(processes << 31 | ordinals, return_inverse=True)
    seen = pairs & _INT32
    pids = np.append((known >> _ID_BITS) & _ID, NONE)[pairs >> 31]
    gpus = _gpus(export)
    named = [gpus.get(pair, NONE) for pair in zip(pids.tolist(), seen.tolist(), strict=True)]
    ids = seen if NONE in named else np.array(named, np.int64)
    described = _described(export)
    return ids[places], tuple(
        described.get(each, Device(each, None, None, None)) for each in np.unique(ids).tolist()
    )


def _gpus(export: Export) -> Mapping[tuple[int, int], int]:
    """The id of a GPU by process id and CUDA ordinal."""
    if not {"pid", "cudaId", "gpuId"} <= export.columns("TARGET_INFO_CUDA_DEVICE"):
        return {}
    return {
        (pid, ordinal): gpu
        for chunk in export.chunks("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
        for pid, ordinal, gpu in zip(
            *(each.tolist() for each in chunk.integers.values()), strict=True
        )
        if 0 <= gpu < _INT32
    }


def _described(export: Export) -> Mapping[int, Device]:
    if "id" not in export.columns("TARGET_INFO_GPU"):
        return {}
    return {
        id_: Device(id_, name, memory if memory > 0 else None, n_sms if n_sms > 0 else None)
        for chunk in export.chunks("TARGET_INFO_GPU", ("id",), ("totalMemory", "smCount"), "name")
        for id_, memory, n_sms, name in zip(
            *(chunk.integers[each].tolist() for each in ("id", "totalMemory", "smCount")),
            chunk.texts,
            strict=True,
        )
    }


def epoch_ns(export: Export, last_ns: int) -> int | None:
    """The offset from the export's times to nanoseconds since 1970.

    Times count from the start of the session, unless the report was exported with `--ts-normalize=true`: then
    they already count from 1970.
    """
    if "utcEpochNs" not in export.columns("TARGET_INFO_SESSION_START_TIME"):
        return None
    for chunk in export.chunks("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        for started_ns in chunk.integers["utcEpochNs"].tolist():
            return 0 if last_ns >= started_ns else started_ns
    return None
