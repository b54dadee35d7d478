"""A caching allocator that hands out addresses as torch's does, and writes down what is true of it."""

import random
from typing import Any

MIB = 1 << 20


class Allocator:
    """Best fit, splitting and coalescing as in CUDACachingAllocator.cpp, on one stream.

    `truth` holds after each event (allocated, requested, reserved) bytes.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.truth: list[tuple[int, int, int]] = []
        self.segments: dict[int, dict[int, list[int]]] = {}
        """Blocks by address of each segment: size, requested (0 of free ones)."""
        self.large: set[int] = set()
        self._next = 0x7F0000000000
        self._returned: list[tuple[int, int]] = []
        self.time_us = 1_700_000_000_000_000

    def alloc(self, asked: int) -> int:
        size = max(512, -(-asked // 512) * 512)
        is_large = size > MIB
        fits = [
            (block[0], address, segment)
            for segment, blocks in self.segments.items()
            if (segment in self.large) == is_large
            for address, block in blocks.items()
            if not block[1] and block[0] >= size
        ]
        if fits:
            found, address, segment = min(fits)
        else:
            found = 2 * MIB if not is_large else 20 * MIB if size < 10 * MIB else size
            found = -(-found // (2 * MIB)) * 2 * MIB
            address = segment = self._place(found)
            self.segments[segment] = {address: [found, 0]}
            if is_large:
                self.large.add(segment)
            self._event("segment_alloc", address, found)
        rest = found - size
        if rest > MIB or (not is_large and rest >= 512):
            self.segments[segment][address + size] = [rest, 0]
            found = size
        self.segments[segment][address] = [found, asked]
        self._event("alloc", address, asked)
        return address

    def free(self, address: int) -> None:
        segment = max(each for each in self.segments if each <= address)
        blocks = self.segments[segment]
        asked = blocks[address][1]
        blocks[address][1] = 0
        self._event("free_requested", address, asked)
        merged: dict[int, list[int]] = {}
        last = None
        for at in sorted(blocks):
            if last is not None and not merged[last][1] and not blocks[at][1]:
                merged[last][0] += blocks[at][0]
            else:
                merged[at] = blocks[at]
                last = at
        self.segments[segment] = merged
        self._event("free_completed", address, asked)

    def empty_cache(self) -> None:
        for segment, blocks in list(self.segments.items()):
            if len(blocks) == 1 and not blocks[segment][1]:
                del self.segments[segment]
                self.large.discard(segment)
                self._returned.append((segment, blocks[segment][0]))
                self._event("segment_free", segment, blocks[segment][0])

    def held(self) -> tuple[int, int, int]:
        blocks = [each for those in self.segments.values() for each in those.values()]
        return (
            sum(size for size, asked in blocks if asked),
            sum(asked for _, asked in blocks),
            sum(size for size, _ in blocks),
        )

    def snapshot(self, since: int = 0) -> dict[str, Any]:
        """As torch would write it, with the events from there on."""
        segments = [
            {
                "device": 0,
                "address": segment,
                "total_size": sum(size for size, _ in blocks.values()),
                "stream": 0,
                "segment_type": "large" if segment in self.large else "small",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": [
                    {
                        "address": at,
                        "size": size,
                        "requested_size": asked,
                        "state": "active_allocated" if asked else "inactive",
                        "frames": [],
                    }
                    for at, (size, asked) in sorted(blocks.items())
                ],
            }
            for segment, blocks in self.segments.items()
        ]
        return {
            "segments": segments,
            "device_traces": [self.events[since:]],
            "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
            "external_annotations": [],
        }

    def _place(self, size: int) -> int:
        """Of a new segment: where one was that is gone, if it fits, or behind all others."""
        for index, (address, room) in enumerate(self._returned):
            if size <= room:
                del self._returned[index]
                return address
        self._next += size + 2 * MIB * random.randint(0, 1)
        return self._next - size

    def _event(self, action: str, address: int, size: int) -> None:
        self.time_us += 7
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self.time_us,
                "frames": [],
            }
        )
        self.truth.append(self.held())


def busy(seed: int, n: int) -> Allocator:
    """After n random moves, tidied now and then."""
    random.seed(seed)
    made, live = Allocator(), []
    for _ in range(n):
        draw = random.random()
        if draw < 0.5 or not live:
            asked = random.choice((random.randint(1, 5000), random.randint(1, 40 * MIB)))
            live.append(made.alloc(asked))
        elif draw < 0.97:
            made.free(live.pop(random.randrange(len(live))))
        else:
            made.empty_cache()
    return made
