"""The events, stacks, segments and blocks of a snapshot, collected while its file is read, and checked."""

import itertools
import struct
from typing import Any, Final

import numpy as np

from peakward.records.errors import PeakwardError, printable
from peakward.traces.memory.table import NONE, Action, Block, Frame, MemoryEvents, Segment

ALLOCATED: Final = "active_allocated"
INACTIVE: Final = "inactive"
STATES: Final = (ALLOCATED, "active_awaiting_free", "active_pending_free", INACTIVE)
"""The two in the middle mean the same: freed by the program, still in use on another stream. Which name is
used depends on whether Python or C++ wrote the snapshot."""
MAX_DEVICES: Final = 64
"""The most devices of one process, because each one is analysed from all events."""
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


def segments(found: Any, stacks: Stacks) -> tuple[Segment, ...]:
    """The records of a snapshot's `segments`, in order of device and address.

    Raises:
        PeakwardError: one is no segment, its blocks do not fill it or are another's too, or a size
            cannot be.
    """
    _check_blocks_are_their_own(found)
    made = [_segment(each, f"segment {index:,}", stacks) for index, each in enumerate(found)]
    made.sort(key=lambda each: (each.device, each.address))
    for one, next_one in itertools.pairwise(made):
        if one.device == next_one.device and one.address + one.n_bytes > next_one.address:
            raise _refusal(f"segments of device {one.device} that do not overlap", "two that do")
    return tuple(made)


def _check_blocks_are_their_own(found: Any) -> None:
    """Refuse shared lists of blocks. Otherwise a file of n bytes could have n² blocks, because a pickle
    refers to an earlier value in two bytes."""
    every = [each.get("blocks") for each in found if isinstance(each, dict)]
    lists = [id(each) for each in every if isinstance(each, list | tuple)]
    if len(set(lists)) < len(lists):
        raise _refusal("each segment to have blocks of its own", "one list of them for several")


def _segment(found: Any, where: str, stacks: Stacks) -> Segment:
    if not isinstance(found, dict) or not isinstance(found.get("blocks"), list | tuple):
        raise _refusal(f"{where} to be a dict with blocks", type(found).__name__)
    address = _whole(found, "address", where)
    n_bytes = _whole(found, "total_size", where)
    blocks, at = [], address
    for index, each in enumerate(found["blocks"]):
        blocks.append(_block(each, f"block {index:,} of {where}", at, stacks))
        at += blocks[-1].n_bytes
    if at != address + n_bytes:
        raise _refusal(f"blocks of {where} to fill its {n_bytes:,} bytes", f"{at - address:,}")
    return Segment(
        device=_whole(found, "device", where, default=0, most=MAX_DEVICES),
        address=address,
        n_bytes=n_bytes,
        stream=_whole(found, "stream", where, default=0),
        kind="small" if found.get("segment_type") == "small" else "large",
        pool=_pool(found.get("segment_pool_id", (0, 0)), where),
        is_expandable=found.get("is_expandable") is True,
        blocks=tuple(blocks),
    )


def _block(found: Any, where: str, address: int, stacks: Stacks) -> Block:
    if not isinstance(found, dict):
        raise _refusal(f"{where} to be a dict", type(found).__name__)
    n_bytes = _whole(found, "size", where)
    if _whole(found, "address", where, default=address) != address:
        raise _refusal(f"{where} to begin where the one before it ends", repr(found["address"]))
    state = found.get("state")
    if state not in STATES:
        raise _refusal(f"the state of {where} to be one of {', '.join(STATES)}", _short(state))
    return Block(
        address=address,
        n_bytes=n_bytes,
        requested_bytes=_whole(found, "requested_size", where, default=n_bytes),
        state=str(state),
        # torch writes no frames where an allocation has no context.
        stack=stacks.position(found.get("frames") or None),
    )


def _pool(found: Any, where: str) -> tuple[int, int]:
    if (
        isinstance(found, tuple | list)
        and len(found) == 2
        and all(type(each) is int for each in found)
    ):
        return found[0], found[1]
    raise _refusal(f"segment_pool_id of {where} to be two integers", _short(found))


def _whole(
    found: dict[Any, Any], key: str, where: str, *, default: int | None = None, most: int = _MAX
) -> int:
    value = found.get(key, default)
    if type(value) is not int or not 0 <= value < most:
        raise _refusal(f"{key} of {where} to be a whole number, 0 or more", _short(value))
    return value


def _short(value: Any) -> str:
    plain = isinstance(value, str | int | float | None)
    return ascii(value[:40] if isinstance(value, str) else value) if plain else type(value).__name__


def _refusal(expected: str, got: str) -> PeakwardError:
    return PeakwardError(
        f"expected {expected}, got {got}: the snapshot was edited or is damaged, so record it again"
    )


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

    def events(self, n_by_device: list[int]) -> MemoryEvents:
        """All events. The first `n_by_device[0]` belong to device 0, and so on."""
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, 6)
        action, address, n_bytes, time_us, stack, has_forward = np.ascontiguousarray(rows.T)
        return MemoryEvents(
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
