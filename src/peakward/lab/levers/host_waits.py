"""Sees the lines of a user's code at which the host waits for the GPU."""

import linecache
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import peakward

SYNCHRONIZING = "called a synchronizing CUDA operation"
"""torch's warning in the debug mode of synchronisations (c10/cuda/CUDAFunctions.cpp, torch 2.13)."""
_NOT_THE_USER_S = (
    *(f"{Path(str(each.__file__)).parent}/" for each in (torch, peakward)),
    str(warnings.__file__),
)


@contextmanager
def host_waits() -> Iterator[Counter[str]]:
    """While it lasts, the calls that wait for the GPU by the line of the user's code that makes them, as
    `file.py:7: loss.item()`, with their numbers.

    Copies that block and `torch.cuda.synchronize` are not among what torch warns of.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warned_lines() as seen:
            yield seen
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def warned_lines() -> Iterator[Counter[str]]:
    """While it lasts, the lines at which torch warns of a synchronisation; other warnings go on as before."""
    seen: Counter[str] = Counter()
    with warnings.catch_warnings():
        shown = warnings.showwarning
        warnings.filterwarnings("always", message=SYNCHRONIZING)

        def show(message: Any, *args: Any, **kwargs: Any) -> None:
            if str(message).startswith(SYNCHRONIZING):
                seen[_line(sys._getframe())] += 1
            else:
                shown(message, *args, **kwargs)

        warnings.showwarning = show
        yield seen


def _line(frame: FrameType | None) -> str:
    """The innermost line outside torch and Peakward."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_NOT_THE_USER_S) and not path.startswith("<frozen"):
            code = linecache.getline(path, frame.f_lineno).strip()
            return f"{Path(path).name}:{frame.f_lineno}" + (f": {code}" if code else "")
        frame = frame.f_back
    return "a line outside of Python"
