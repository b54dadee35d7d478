"""Collects events and stacks of a snapshot while its file is read."""

import struct
from typing import Any, Final

import numpy as np

from peakward.records.errors import PeakwardError, printable
from peakward.traces.memory.table import NONE, Action, Events, Frame

EVENT: Final = object()
"""The placeholder for an event in the list it was taken from."""

_ACTIONS = {each.name.lower(): int(each) for each in Action}
_OTHER, _OOM = int(Action.OTHER), int(Action.OOM)
_ROW = struct.Struct("=6q")
MAX_NAME: Final = 4096
"""The most characters of a file's or function's name that are kept. A path on Linux has no more. Without a
limit, many frames with one shared name of 16 MiB would each look through all of it."""
WORKED_OUT = 3
"""The factor of derived data over the columns. 300,000 allocations over 1 MiB, none of them freed, took at
most 300 bytes each, while the reader counts 80 beside the 48 of the columns; 12 million events, three for an
allocation, took 215."""
MAX_FRAMES: Final = 1 << 14
"""The most frames of one stack. Python stops at 1000 unless it is told otherwise."""
_MAX = 1 << 62


class Stacks:
    """Each different stack once, and each different frame once."""

    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self.n_bytes = 0
        self._lists: dict[int, tuple[list[Any] | tuple[Any, ...], int, int]] = {}
        self._dicts: dict[int, tuple[dict[Any, Any], int]] = {}

    def position(self, frames: object) -> int:
        """The position of a list of frames in `stacks`; NONE for no list. Each list is examined once, however
        many events share it, and each frame once, however many lists do.

        Raises:
            PeakwardError: they are not frames, or the list has grown since it was here.
        """
        if frames is None:
            return NONE
        # Lists are known by identity, and kept, so that no other list gets the same id.
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
    """Takes the events out of a snapshot's pickle and into columns."""

    def __init__(self) -> None:
        self.stacks = Stacks()
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    @property
    def n_bytes(self) -> int:
        """The bytes of stacks, columns and derived data: at most twice as much more, beside the bytes that
        the reader itself counts for each event."""
        return self.stacks.n_bytes + WORKED_OUT * len(self._rows)

    def take(self, found: dict[Any, Any]) -> object | None:
        """EVENT for an event, None for any other dict.

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
        """All events. The first `n_by_device[0]` belong to device 0, and so on."""
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
    """A short description of a value, fit for a terminal: the value may be of any size and depth."""
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
