"""Finds the exact elements of a JSON array, for the few stretches of a trace where a guessed cut does not
decode."""

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_SLICE = 1 << 20
"""Limits the memory of the masks; a slice takes 10 ms."""


class Elements(NamedTuple):
    """The elements in the text of an array, from one of its elements on."""

    commas: list[int]
    """Positions of the commas between elements."""
    close: int | None
    """The position of the array's closing bracket; None if the text ends before it."""


def elements(text: bytes) -> Elements:
    """Find the elements by following strings and nesting byte by byte, so that no name can mislead it."""
    # Outside strings JSON has no backslashes, so pairing them from the left is exact.
    plain = _ESCAPE.sub(b"__", text) if b"\\" in text else text
    codes = np.frombuffer(plain, np.uint8)
    commas: list[int] = []
    in_string, depth = False, 0
    for start in range(0, len(codes), _SLICE):
        part = codes[start : start + _SLICE]
        inside = np.logical_xor.accumulate(part == ord('"')) ^ in_string
        in_string = bool(inside[-1])
        found = np.flatnonzero(_is_structural(part) & ~inside)
        kinds = part[found]
        steps = np.zeros(len(found), np.int64)
        steps[(kinds == ord("{")) | (kinds == ord("["))] = 1
        steps[(kinds == ord("}")) | (kinds == ord("]"))] = -1
        depths = depth + np.cumsum(steps)
        closings = np.flatnonzero(depths < 0)
        end = int(closings[0]) if len(closings) else len(found)
        is_comma = (kinds[:end] == ord(",")) & (depths[:end] == 0)
        commas += (found[:end][is_comma] + start).tolist()
        if len(closings):
            return Elements(commas, start + int(found[end]))
        depth = int(depths[-1]) if len(found) else depth
    return Elements(commas, None)


def _is_structural(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    # { and [ differ by one bit, as do } and ].
    folded = codes & 0xDF
    found: NDArray[np.bool_] = (folded == ord("[")) | (folded == ord("]")) | (codes == ord(","))
    return found
