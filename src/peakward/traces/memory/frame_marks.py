"""The evidence that a stack's lines give about its allocation."""

import itertools
import re
from collections.abc import Sequence
from enum import IntFlag
from functools import lru_cache

import numpy as np

from peakward.traces.memory.table import Frame, Ints


class Mark(IntFlag):
    """Evidence in a stack."""

    PYTHON = 1
    """A line of Python."""
    MODULE = 2
    """A module of torch.nn is being called: the forward pass."""
    WEIGHTS = 4
    """Weights or buffers are being created, or moved to the device."""
    BACKWARD = 8
    """Autograd's backward pass, including its recomputation."""
    OPTIMIZER = 16
    """A step of an optimiser of torch.optim."""
    STATE = 32
    """The optimiser is creating the state of its parameters."""
    ZERO_GRAD = 64
    """Gradients are being freed."""
    WORKSPACE = 128
    """Scratch memory of cuBLAS."""
    EMPTY_CACHE = 256
    """The program returns cached memory."""


_CPP = re.compile(r"\.(cpp|cc|h|hpp|cu|cuh|c|so(\.\d+)*)$|^\?\?$|^$")
_TORCH = re.compile(r"(^|[/\\])(torch|triton|functorch)[/\\]")
_GENERATED = re.compile(r"torchinductor|^<(?!ipython|stdin|string|frozen)")
_LIBRARY = re.compile(r"^<frozen |[/\\]lib[/\\]python3\.\d+[/\\](?!(site|dist)-packages)")
_NN_MODULE = re.compile(r"[/\\]?torch[/\\]nn[/\\]modules[/\\]module\.py$")
_NN_MODULES = re.compile(r"[/\\]?torch[/\\]nn[/\\](modules[/\\]\w+|parameter)\.py$")
_OPTIM = re.compile(r"[/\\]?torch[/\\]optim[/\\]\w+\.py$")
_FUNCTION = re.compile(r"[/\\]?torch[/\\]autograd[/\\]function\.py$")
_AUTOGRAD = re.compile(r"[/\\]?torch[/\\](autograd[/\\](__init__|graph)|_tensor)\.py$")
_CHECKPOINT = re.compile(r"[/\\]?torch[/\\]utils[/\\]checkpoint\.py$")
_IN_BACKWARD = {"backward", "grad", "_make_grads", "_engine_run_backward"}
_RECOMPUTING = {"unpack_hook", "recompute_fn", "backward"}
_CALLS = {"_call_impl", "_wrapped_call_impl"}
_MOVES = {"_apply", "to_empty"}
_MAKES = {"__init__", "reset_parameters", "__new__", "__deepcopy__"}


_HANDS_ON = {"__torch_dispatch__", "__torch_function__"}

_APPLY = re.compile(r"\w::apply\b")


def is_node(frame: Frame) -> bool:
    """Whether a line of C++ is the call of a node in autograd's graph."""
    if not _CPP.search(frame.filename):
        return False
    # A parenthesis ends the search, which passes the name once: one pattern for both backtracks
    # quadratically.
    after = (part.partition("torch::autograd::")[2] for part in frame.name.split("("))
    return any(map(_APPLY.search, after))


@lru_cache(1 << 16)  # Each of the last 100 times that memory ran out asks it of a whole stack.
def is_library(frame: Frame) -> bool:
    """Whether a line belongs to torch, its generated code, Python's library or C++, or passes an operator on,
    like a torch mode that watches the program's calls."""
    name = frame.filename
    return frame.name in _HANDS_ON or bool(
        _CPP.search(name) or _TORCH.search(name) or _GENERATED.search(name) or _LIBRARY.search(name)
    )


def frame_marks(frame: Frame) -> Mark:
    """The evidence of one line alone."""
    filename, _, name = frame
    if _CPP.search(filename):
        return _cpp_marks(name)
    marks = Mark.PYTHON
    if _NN_MODULE.search(filename) and name in _CALLS:
        marks |= Mark.MODULE
    if (_NN_MODULE.search(filename) and name in _MOVES) or (
        _NN_MODULES.search(filename) and name in _MAKES
    ):
        marks |= Mark.WEIGHTS
    if (_AUTOGRAD.search(filename) and name in _IN_BACKWARD) or (
        _CHECKPOINT.search(filename) and name in _RECOMPUTING
    ):
        marks |= Mark.BACKWARD
    if name == "zero_grad":
        marks |= Mark.ZERO_GRAD
    elif _OPTIM.search(filename):
        marks |= Mark.OPTIMIZER | (Mark.STATE if name == "_init_group" else Mark(0))
    if name == "empty_cache":
        marks |= Mark.EMPTY_CACHE
    return marks


def _cpp_marks(name: str) -> Mark:
    marks = Mark(0)
    if "torch::autograd::Engine::" in name or "Backward0::apply" in name:
        marks |= Mark.BACKWARD
    if "setWorkspaceForHandle" in name or ("CUDABlas" in name and "orkspace" in name):
        marks |= Mark.WORKSPACE
    if "emptyCache" in name:
        marks |= Mark.EMPTY_CACHE
    return marks


def stack_marks(stacks: Sequence[Sequence[int]], frames: Sequence[Frame]) -> Ints:
    """For each stack the evidence of all its lines, and of lines that follow one another."""
    of_frame = [int(frame_marks(each)) for each in frames]
    named_backward = [each.name == "backward" for each in frames]
    applies = [bool(each.name == "apply" and _FUNCTION.search(each.filename)) for each in frames]
    found = np.zeros(len(stacks), np.int64)
    for index, stack in enumerate(stacks):
        marks = 0
        for each in stack:
            marks |= of_frame[each]
        # Function.apply of a forward pass has the same name, but calls `forward`.
        if any(
            named_backward[inner] and applies[outer] for inner, outer in itertools.pairwise(stack)
        ):
            marks |= int(Mark.BACKWARD)
        found[index] = marks
    return found
