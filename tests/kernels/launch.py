"""What a launch may take of a multiprocessor."""

from collections.abc import Callable
from typing import NamedTuple


class Launch(NamedTuple):
    """A call that starts kernels, and the most that each of them may take.

    A multiprocessor has 65,536 registers and up to 227 KiB of shared memory (163 KiB on sm_80) for
    all programs that are to be resident at once.
    """

    start: Callable[[], object]
    registers: int
    """A thread; 255 is the most there are."""
    shared_bytes: int
    """A program."""
    stack_bytes: int = 0
    """A thread: where what does not fit into registers is spilled to."""
    capabilities: tuple[int, ...] = (80, 90)
    """What it is compiled for."""
