"""A recorded case's memory by phase, category and module, from its snapshot and its worker's marks.

The case itself knows where its tensors lay, and which phase and module ran. Nothing is guessed by size or by
stacks.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, get_args

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
    Purpose,
)
from peakward.traces.memory.lifetimes import Lifetimes
from peakward.traces.memory.memory import Memory
from peakward.traces.memory.origins import shares, source
from peakward.traces.memory.table import Action, Flags, Ints, MemoryEvents

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


PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)
PHASES: Final = ("build", "forward", "backward", "optimizer")


class Purposes(NamedTuple):
    """The purpose and origin of each allocation."""

    purpose: Ints
    """The position in PURPOSES."""
    phase: Ints
    """The position in PHASES of the phase that allocated it."""
    module: Ints
    """The position in `modules` of the module that ran at the allocation."""
    modules: tuple[str, ...]


class Moments:
    """Converts the marks of one recording to positions (`lifetimes`)."""

    def __init__(self, events: MemoryEvents, marks: MemoryMarks) -> None:
        counted = np.isin(events.action, (Action.ALLOC, Action.FREE_REQUESTED))
        self._at = np.r_[0, np.flatnonzero(counted) + 1]
        n = len(self._at) - 1
        if n < marks.cleared[1]:
            raise PeakwardError(
                f"expected {marks.cleared[1]:,} allocations and frees in the snapshot, as its worker "
                f"counted, got {n:,}: it was not recorded whole, so record it again"
            )
        self.marks = marks

    def of(self, n_events: int) -> int:
        """The position after that many allocations and frees."""
        return int(self._at[n_events])

    def counted(self, position: int) -> int:
        """The number of allocations and frees before a position: the inverse of `of`."""
        return int(np.searchsorted(self._at, position, side="right")) - 1

    def many(self, n_events: Sequence[int]) -> Ints:
        """The positions for several numbers."""
        found: Ints = self._at[np.array(n_events, np.int64)]
        return found


def purposes(found: Lifetimes, moments: Moments) -> Purposes:
    """The purpose of each allocation by the first rule that holds.

    The rules: its tensor existed between steps, or is a copy of a weight; it was freed with cuBLAS's
    workspaces; a module made it in the forward pass, or again in backward, and it was freed in backward
    outside modules; else it is a temporary.
    """
    marks = moments.marks
    phases = [PHASES.index(phase) for _, phase in marks.phases]
    phase_starts = moments.many([at for at, _ in marks.phases])
    born = _running(found.born, phase_starts, phases, PHASES.index("build"))
    freed = _running(found.freed, phase_starts, phases, PHASES.index("build"))
    names = tuple(dict.fromkeys(("", *(name for _, name in marks.modules))))
    codes = [names.index(name) for _, name in marks.modules]
    module_starts = moments.many([at for at, _ in marks.modules])
    made_by = _running(found.born, module_starts, codes, 0)
    freed_by = _running(found.freed, module_starts, codes, 0)
    forward, backward = PHASES.index("forward"), PHASES.index("backward")
    recomputed = (born == backward) & (made_by > 0)
    freed_in_backward = (freed == backward) & (found.freed < found.n_positions)
    kept = ((born == forward) & freed_in_backward) | (
        recomputed & freed_in_backward & (freed_by == 0)
    )
    code = np.full(len(found), PURPOSES.index("temporaries"), np.int64)
    code[kept] = PURPOSES.index("activations")
    first, last = (moments.of(each) for each in marks.cleared)
    code[(found.freed > first) & (found.freed <= last)] = PURPOSES.index("workspace")
    for held in marks.held:
        alive = found.alive(moments.of(held.at)) & np.isin(found.address, held.addresses)
        code[alive] = PURPOSES.index(held.purpose)
    return Purposes(code, born, made_by, names)


def held_bytes(found: Lifetimes, n_bytes: Ints, chosen: Flags) -> Ints:
    """The bytes of the chosen allocations that are held at each position."""
    change = np.zeros(found.n_positions + 1, np.int64)
    np.add.at(change, found.born[chosen], n_bytes[chosen])
    np.subtract.at(change, found.freed[chosen], n_bytes[chosen])
    total: Ints = np.cumsum(change[:-1])
    return total


def _running(positions: Ints, starts: Ints, codes: Sequence[int], before: int) -> Ints:
    """The code that was running as the event before each position happened. Of several starts at one place
    the last counts."""
    index = np.searchsorted(starts, positions, side="left")
    found: Ints = np.r_[before, np.array(codes, np.int64)][index]
    return found
