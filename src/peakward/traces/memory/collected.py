"""Events and stacks of a snapshot while its file is read."""

import struct
from typing import Any, Final

import numpy as np

from peakward.records.errors import PeakwardError
from peakward.records.printable import printable
from peakward.traces.memory.table import NONE, Action, Events, Frame

EVENT: Final = object()
"""What stands for an event in the list it was taken from."""

_ACTIONS = {each.name.lower(): int(each) for each in Action}
_OTHER, _OOM = int(Action.OTHER), int(Action.OOM)
_ROW = struct.Struct("=6q")
MAX_NAME: Final = 4096
"""Characters of a file's or function's name that are kept: a path of Linux has as many at most. Without a
bound each of many frames that share one name of 16 MiB would look through all of it."""
WORKED_OUT = 3
"""Times the columns: 300,000 allocations over 1 MiB, none let go, took 300 bytes each at most, where the
reader counts 80 beside the 48 of the columns; 12 million events of three for an allocation took 215."""
MAX_FRAMES: Final = 1 << 14
"""Of one stack: Python stops at 1000 unless it is told otherwise."""
_MAX = 1 << 62


class Stacks:
    """Each different stack once, each different frame once."""

    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self.n_bytes = 0
        self._lists: dict[int, tuple[list[Any] | tuple[Any, ...], int, int]] = {}
        self._dicts: dict[int, tuple[dict[Any, Any], int]] = {}

    def position(self, frames: object) -> int:
        """Of a list of frames in `stacks`; NONE of none. Each list is looked through once, however many
        events share it, and each frame once, however many lists do.

        Raises:
            PeakwardError: they are not frames, or the list has grown since it was here.
        """
        if frames is None:
            return NONE
        # By identity: what is known is kept, so that nothing else comes to have its id.
        known = self._lists.get(id(frames))
        if known is not None:
            if len(known[0]) != known[1]:
                raise PeakwardError(
                    "expected a list of frames that stays as an event had it, got one that grows: the "
                    "snapshot was edited or is damaged, so record it again"
                )
            return known[2]
        if not isinstance(frames, list | tuple):
            raise PeakwardError(f"expected a list of frames, got {_said(frames)}")
        if len(frames) > MAX_FRAMES:
            raise PeakwardError(
                f"expected stacks of at most {MAX_FRAMES:,} frames, got one of {len(frames):,}: no program "
                "calls so deep; record the snapshot again"
            )
        stack = tuple(map(self._frame, frames))
        found = self.stacks.get(stack)
        if found is None:
            found = self.stacks[stack] = len(self.stacks)
            self.n_bytes += 200 + 8 * len(stack)
        self._lists[id(frames)] = frames, len(frames), found
        self.n_bytes += 150
        return found

    def _frame(self, found: object) -> int:
        known = self._dicts.get(id(found))
        if known is not None:
            return known[1]
        if not isinstance(found, dict):
            raise PeakwardError(f"expected a stack's frame, got {_said(found)}")
        filename, line, name = found.get("filename"), found.get("line"), found.get("name")
        if not (isinstance(filename, str) and isinstance(name, str) and type(line) is int):
            raise PeakwardError(
                f"expected a frame with filename, line and name, got {_said(found)}"
            )
        frame = Frame(printable(filename[:MAX_NAME]), line, printable(name[:MAX_NAME]))
        position = self.frames.get(frame)
        if position is None:
            position = self.frames[frame] = len(self.frames)
            self.n_bytes += 400 + len(frame.filename) + len(frame.name)
        self._dicts[id(found)] = found, position
        self.n_bytes += 150
        return position


class EventCollector:
    """Takes the events out of a snapshot's pickle, into columns."""

    def __init__(self) -> None:
        self.stacks = Stacks()
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    @property
    def n_bytes(self) -> int:
        """Of stacks, of columns, and of what is worked out from these: at most twice as much more, beside
        what the reader itself counts of each event."""
        return self.stacks.n_bytes + WORKED_OUT * len(self._rows)

    def take(self, found: dict[Any, Any]) -> object | None:
        """EVENT of an event, None of another dict.

        Raises:
            PeakwardError: it is an event whose fields cannot be.
        """
        name = found.get("action")
        if name is None:
            return None
        get = found.get
        try:
            action = _ACTIONS.get(name, _OTHER)
            n_bytes = get("size", 0)
            address = get("device_free", 0) if action == _OOM else get("addr", 0)
            stack = self.stacks.position(get("frames"))
            self._rows += _ROW.pack(
                action, address, n_bytes, get("time_us", 0), stack, bool(get("forward_frames"))
            )
        except (struct.error, TypeError) as error:
            raise self._refusal(found) from error
        if not 0 <= n_bytes < _MAX or address < 0:
            raise self._refusal(found)
        return EVENT

    def events(self, n_by_device: list[int]) -> Events:
        """All, of which the first so many are of device 0 and so on."""
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, 6)
        action, address, n_bytes, time_us, stack, has_forward = np.ascontiguousarray(rows.T)
        return Events(
            device=np.repeat(np.arange(len(n_by_device)), n_by_device),
            action=action,
            address=address,
            n_bytes=n_bytes,
            time_us=time_us,
            stack=stack,
            has_forward=has_forward != 0,
        )

    def _refusal(self, found: object) -> PeakwardError:
        return PeakwardError(
            f"expected event {len(self):,} to have a whole size, address and time_us, got "
            f"{_said(found)}: the snapshot was edited or is damaged, so record it again"
        )


def _said(found: object) -> str:
    """What it is, short and fit for a terminal: it may be of any size, and nested without end."""
    if isinstance(found, dict):
        parts = (f"{_said(key)}: {_scalar(value)}" for key, value in list(found.items())[:8])
        return "{" + ", ".join(parts) + "}"
    return _scalar(found)


def _scalar(found: object) -> str:
    if isinstance(found, str | bytes):
        return printable(repr(found[:40]))
    if isinstance(found, int | float | None):
        return repr(found)
    return f"a {type(found).__name__}"
