"""The allocator's segments and blocks at the end, checked."""

import itertools
from typing import Any, Final

from peakward.records.errors import PeakwardError
from peakward.traces.memory.collected import Stacks
from peakward.traces.memory.table import Block, Segment

ALLOCATED: Final = "active_allocated"
INACTIVE: Final = "inactive"
STATES: Final = (ALLOCATED, "active_awaiting_free", "active_pending_free", INACTIVE)
"""The two in the middle mean the same: freed by the program, still in use on another stream. Which name is
used depends on whether Python or C++ wrote the snapshot."""
MAX_DEVICES: Final = 64
"""The most devices of one process, because each one is analysed from all events."""

_MAX = 1 << 62


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
