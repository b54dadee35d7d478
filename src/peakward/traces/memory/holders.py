"""The memory held at one moment: by category, by place, by the stack that allocated it."""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from peakward.records.memory_snapshot import MemoryHolder, MemoryShare
from peakward.traces.memory.frame_marks import is_library, is_node
from peakward.traces.memory.lifetimes import Lifetimes
from peakward.traces.memory.origins import CATEGORIES
from peakward.traces.memory.table import NONE, Flags, Frame, Ints, Snapshot

MOST_HOLDERS: Final = 50
MOST_LINES: Final = 12


def shares(
    codes: Ints, names: Sequence[str], n_bytes: Ints, alive: Flags
) -> tuple[MemoryShare, ...]:
    """The share of each name with any allocations, the largest first."""
    n = np.bincount(codes[alive], minlength=len(names))
    held = np.zeros(len(names), np.int64)
    np.add.at(held, codes[alive], n_bytes[alive])
    order = sorted((each for each in range(len(names)) if n[each]), key=lambda each: -held[each])
    return tuple(
        MemoryShare(name=names[each], n=int(n[each]), n_bytes=int(held[each])) for each in order
    )


def holders(
    snapshot: Snapshot, found: Lifetimes, n_bytes: Ints, category: Ints, alive: Flags
) -> tuple[tuple[MemoryHolder, ...], int]:
    """The largest holders by stack, and the number of all holders."""
    rows = np.flatnonzero(alive)
    stacks, place = np.unique(found.stack[rows], return_inverse=True)
    held = np.zeros(len(stacks), np.int64)
    np.add.at(held, place, n_bytes[rows])
    greatest = np.argsort(-held, kind="stable")[:MOST_HOLDERS]
    made = []
    for each in greatest.tolist():
        mine = rows[place == each]
        by_category = np.zeros(len(CATEGORIES), np.int64)
        np.add.at(by_category, category[mine], n_bytes[mine])
        stack = int(stacks[each])
        made.append(
            MemoryHolder(
                source=source(snapshot, stack),
                category=CATEGORIES[int(by_category.argmax())],
                n=len(mine),
                n_bytes=int(held[each]),
                largest_bytes=int(n_bytes[mine].max()),
                lines=_lines(snapshot, stack),
            )
        )
    return tuple(made), len(stacks)


def source(snapshot: Snapshot, stack: int) -> str | None:
    """The program's line of a stack; for a stack without one, the innermost line."""
    lines = _lines(snapshot, stack)
    return lines[0] if lines else None


def _lines(snapshot: Snapshot, stack: int) -> tuple[str, ...]:
    if stack == NONE:
        return ()
    frames = [snapshot.frames[each] for each in snapshot.stacks[stack]]
    own = [each for each in frames if not is_library(each)]
    # In a stack of C++ only, the innermost lines are the allocator's own and tell nothing.
    telling = own or [each for each in frames if is_node(each)] or frames
    return tuple(_line(each, snapshot.directory) for each in telling[:MOST_LINES])


def _line(frame: Frame, directory: str) -> str:
    if frame.line:
        return f"{source_path(frame.filename, directory)}:{frame.line} {frame.name}"
    return frame.name.replace("(anonymous namespace)", "anonymous").partition("(")[0]


_PACKAGE = re.compile(r"^.*[/\\](?:(?:site|dist)-packages[/\\]|src[/\\](?=peakward[/\\]))")


def source_path(filename: str, directory: str) -> str:
    """An installed package's file, and Peakward's own, from the package on; a file under `directory` relative
    to it; any other file unchanged. No file is below an empty `directory`."""
    short = _PACKAGE.sub("", filename)
    if short != filename or not directory:
        return short
    return filename.removeprefix(directory.rstrip("/\\") + "/")
