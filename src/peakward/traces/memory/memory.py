"""A snapshot that was read, with its analyses: the result of `peakward.memory`."""

from functools import cached_property
from pathlib import Path

import numpy as np

from peakward.records import check
from peakward.records.errors import PeakwardError, printable
from peakward.records.memory_snapshot import DeviceMemory, MemoryReport
from peakward.records.result import Result
from peakward.traces.memory.device_memory import OneDevice
from peakward.traces.memory.origins import EVIDENCE, stack_marks
from peakward.traces.memory.snapshot_file import read
from peakward.traces.memory.table import NONE, Snapshot

MIB = 2**20


class Memory(Result):
    """One snapshot. `snapshot` holds its columns, for questions that no method answers."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def __repr__(self) -> str:
        return f"Memory({self.snapshot.source!r}, {len(self.snapshot.events):,} events)"

    @cached_property
    def devices(self) -> tuple[OneDevice, ...]:
        """The devices with events or segments."""
        snapshot = self.snapshot
        marks = stack_marks(snapshot.stacks, snapshot.frames)
        numbers = {each.device for each in snapshot.segments}
        numbers |= set(np.unique(snapshot.events.device).tolist())
        return tuple(OneDevice(snapshot, each, marks) for each in sorted(numbers))

    def report(self) -> MemoryReport:
        """The complete analysis, as the record that `--json` prints.

        Raises:
            PeakwardError: working it out takes more memory than there is.
        """
        try:
            return self._report()
        except MemoryError:
            raise PeakwardError(
                f"expected memory to work out {len(self.snapshot.events):,} events, got too little: "
                "record fewer events (max_entries=100000) or read it where more memory is free"
            ) from None

    def _report(self) -> MemoryReport:
        records = tuple(each.record() for each in self.devices)
        conf = self.snapshot.settings.get("PYTORCH_CUDA_ALLOC_CONF", "")
        return MemoryReport(
            source=self.snapshot.source,
            devices=records,
            settings=printable(conf[:500]) if isinstance(conf, str) else "",
            evidence=self._evidence(records),
            incomplete=tuple(
                said
                for device, record in zip(self.devices, records, strict=True)
                for said in _missing(device, record)
            ),
        )

    def _evidence(self, records: tuple[DeviceMemory, ...]) -> tuple[str, ...]:
        peaks = [each.peak for each in records if each.peak is not None]
        names = {share.name for peak in peaks for share in peak.categories}
        said = [f"{name.replace('_', ' ')}: {EVIDENCE[name]}" for name in EVIDENCE if name in names]
        if any(each.origins.backward_by_absence for each in self.devices):
            said.append(
                "backward: stacks without a line of Python count as its, since autograd runs it on "
                "threads of its own and the program trains (record with stacks='all' for C++ lines)"
            )
        return tuple(said)


def memory(path: str | Path) -> Memory:
    """Read an allocator snapshot of torch, gzipped or not: `peakward memory`. Nothing in it is run.

    Raises:
        PeakwardError: it is none, is damaged, holds more than plain values, or is too large.
    """
    return Memory(read(check.path(path, "a snapshot")))


def _missing(device: OneDevice, record: DeviceMemory) -> list[str]:
    """Sentences on the gaps in one device's part of the snapshot."""
    name, check, said = f"GPU {device.device}", record.check, []
    if not record.n_events:
        said.append(
            f"{name} has no events, so no peak and no timeline: record with "
            "torch.cuda.memory._record_memory_history(enabled='all') before what matters"
        )
    elif (device.events.stack == NONE).all():
        said.append(f"{name}: no event has a stack (context=None), so no source is known")
    if record.before_bytes and record.n_events:
        said.append(
            f"{name}: {record.before_bytes / MIB:,.1f} MiB were allocated before the recording and "
            "are known only from the segments"
        )
    if check.n_contradicting_events or check.n_contradicting_blocks or check.difference_bytes:
        said.append(
            f"{name}: {check.n_contradicting_events:,} events and {check.n_contradicting_blocks:,} "
            f"blocks contradict one another, by {check.difference_bytes:,} bytes at the end: part of "
            "what happened was not recorded, and figures before the end may be off by so much or more"
        )
    if check.n_sizes_wrong:
        said.append(
            f"{name}: of {check.n_sizes_checked:,} block sizes worked out from events, "
            f"{check.n_sizes_wrong:,} differ from the segments': allocated bytes before the end are "
            "near, requested ones exact"
        )
    if len(record.ooms) < len(device.oom_events):
        said.append(
            f"{name}: of {len(device.oom_events):,} times that memory ran out the last "
            f"{len(record.ooms):,} are told"
        )
    if record.peak is not None and record.peak.uncertain_bytes:
        said.append(
            f"{name}: up to {record.peak.uncertain_bytes / MIB:,.0f} MiB more may have been allocated "
            "at the peak, in blocks made before the recording and freed in it"
        )
    if min(record.start.reserved_bytes, record.start.allocated_bytes) < 0:
        said.append(f"{name}: less than nothing was held at the beginning, so events are missing")
    return said
