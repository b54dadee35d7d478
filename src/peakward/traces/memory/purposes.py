"""The purpose of each allocation of a recorded case.

The case itself knows where its tensors lay, and which phase and module ran. Nothing is guessed by size or by
stacks.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, get_args

import numpy as np

from peakward.records.errors import PeakwardError
from peakward.records.memory import MemoryMarks, Purpose
from peakward.traces.memory.lifetimes import Lifetimes
from peakward.traces.memory.table import Action, Events, Flags, Ints

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

    def __init__(self, events: Events, marks: MemoryMarks) -> None:
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
