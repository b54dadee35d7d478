"""A recorded case's memory by phase, category and module, from its snapshot and its worker's marks."""

import re
from typing import Any, NamedTuple

import numpy as np

from peakward.records.case import DeviceType
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.memory import (
    HeldPoint,
    LargeAllocations,
    MemoryMarks,
    ModuleActivations,
    PhasePeak,
)
from peakward.traces.memory.holders import shares, source
from peakward.traces.memory.memory import Memory
from peakward.traces.memory.purposes import PHASES, PURPOSES, Moments, held_bytes, purposes
from peakward.traces.memory.table import Ints

N_STRETCHES = 200
MOST_LARGE = 30
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Recorded(NamedTuple):
    """The fields of `CaseMemory` with the same names."""

    peak_bytes: int
    reserved_bytes: int | None
    phases: tuple[PhasePeak, ...]
    timeline: tuple[HeldPoint, ...]
    modules: tuple[ModuleActivations, ...]
    largest: tuple[LargeAllocations, ...]


def part(module: str) -> str:
    """A module's path with * for its block's number, so that equal modules of all blocks are one."""
    return _NUMBER.sub("*", module)


def recorded(memory: Memory, marks: MemoryMarks, device_type: DeviceType) -> Recorded:
    """Analyse the only device of the snapshot. On a GPU bytes are the allocator's blocks, on a CPU the
    requested sizes.

    Raises:
        PeakwardError: the snapshot has another number of devices, or fewer events than were counted.
    """
    if len(memory.devices) != 1:
        raise PeakwardError(
            f"expected a snapshot of one device, got one of {len(memory.devices)}: let the process "
            "see one GPU"
        )
    return _Step(memory, marks, device_type).recorded()


class _Step:
    """The last step of a recording."""

    def __init__(self, memory: Memory, marks: MemoryMarks, device_type: DeviceType) -> None:
        (self.device,) = memory.devices
        self.snapshot, self.on_gpu = memory.snapshot, device_type == "cuda"
        self.found = self.device.lifetimes
        self.moments = Moments(self.device.events, marks)
        self.begin, self.end = self.moments.of(marks.begin), self.moments.of(marks.end)
        self.n_bytes = self.device.sizes.n_bytes if self.on_gpu else self.found.requested_bytes
        self.told = purposes(self.found, self.moments)
        every = np.ones(len(self.found), bool)
        self.allocated = held_bytes(self.found, self.n_bytes, every)

    def recorded(self) -> Recorded:
        reserved = int(self.device.balances.reserved.max()) if self.on_gpu else None
        return Recorded(
            peak_bytes=int(self.allocated.max()),
            reserved_bytes=reserved,
            phases=self._phases(),
            timeline=self._timeline(),
            modules=self._modules(),
            largest=self._largest(),
        )

    def _phases(self) -> tuple[PhasePeak, ...]:
        marks = self.moments.marks
        inside = [(at, phase) for at, phase in marks.phases if marks.begin <= at <= marks.end]
        ends = [*(at for at, _ in inside[1:]), marks.end]
        peaks: dict[Phase, int] = {}
        for (at, phase), end in zip(inside, ends, strict=True):
            # A phase begins with the state that its first allocation finds.
            first, last = self.moments.of(at), self.moments.of(end)
            peak = first + int(self.allocated[first : last + 1].argmax())
            if phase not in peaks or self.allocated[peak] > self.allocated[peaks[phase]]:
                peaks[phase] = peak
        return tuple(self._peak(phase, position) for phase, position in peaks.items())

    def _peak(self, phase: Phase, position: int) -> PhasePeak:
        alive = self.found.alive(position)
        return PhasePeak(
            phase=phase,
            event=position - self.begin,
            allocated_bytes=int(self.allocated[position]),
            purposes=shares(self.told.purpose, PURPOSES, self.n_bytes, alive),
        )

    def _timeline(self) -> tuple[HeldPoint, ...]:
        """The highest moment of each stretch of equally many events, with the first and the last moment."""
        inside = np.arange(self.begin, self.end + 1)
        stretches = np.array_split(inside, min(N_STRETCHES, len(inside)))
        highest = [int(each[self.allocated[each].argmax()]) for each in stretches]
        chosen = sorted({self.begin, *highest, self.end})
        held = [
            held_bytes(self.found, self.n_bytes, self.told.purpose == each)[chosen].tolist()
            for each in range(len(PURPOSES))
        ]
        return tuple(
            HeldPoint(event=at - self.begin, n_bytes=tuple(n_bytes))
            for at, n_bytes in zip(chosen, zip(*held, strict=True), strict=True)
        )

    def _modules(self) -> tuple[ModuleActivations, ...]:
        is_kept = self.told.purpose == PURPOSES.index("activations")
        mine = np.flatnonzero(is_kept & (self.found.born > self.begin))
        mine = mine[np.argsort(self.found.born[mine], kind="stable")]
        by_module: dict[int, list[int]] = {}
        for each in mine.tolist():
            by_module.setdefault(int(self.told.module[each]), []).append(each)
        return tuple(
            ModuleActivations(
                module=self.told.modules[code], n=len(rows), n_bytes=int(self.n_bytes[rows].sum())
            )
            for code, rows in by_module.items()
        )

    def _largest(self) -> tuple[LargeAllocations, ...]:
        """The largest allocations that exist at any time in the step. Those of one size, stack and place are
        one entry."""
        held: Ints = np.flatnonzero((self.found.born <= self.end) & (self.found.freed > self.begin))
        groups: dict[tuple[Any, ...], int] = {}
        for each in held[np.argsort(-self.n_bytes[held], kind="stable")].tolist():
            key = (
                int(self.n_bytes[each]),
                PURPOSES[self.told.purpose[each]],
                PHASES[self.told.phase[each]],
                part(self.told.modules[self.told.module[each]]),
                source(self.snapshot, int(self.found.stack[each])),
            )
            if key not in groups and len(groups) == MOST_LARGE:
                break
            groups[key] = groups.get(key, 0) + 1
        return tuple(
            LargeAllocations(
                n_bytes=n_bytes, n=n, purpose=purpose, made_in=phase, part=name, source=line
            )
            for (n_bytes, purpose, phase, name, line), n in groups.items()
        )
