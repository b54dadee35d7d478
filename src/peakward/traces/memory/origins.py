"""The memory held at one moment by category and place, told by the stacks of its allocations.

Size and order of events tell nothing. Each rule names its evidence. An allocation without evidence is
`untold`.
"""

import itertools
import re
from collections.abc import Sequence
from enum import IntFlag
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from peakward.records.memory_snapshot import MemoryHolder, MemoryShare
from peakward.traces.memory.lifetimes import Lifetimes
from peakward.traces.memory.table import NONE, Flags, Frame, Ints, MemoryEvents, Snapshot

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


CATEGORIES: Final = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "temporaries",
    "workspace",
    "untold",
)
UNTOLD: Final = CATEGORIES.index("untold")
PLACES: Final = ("weights", "forward", "backward", "optimizer", "elsewhere", "no_stack")
EVIDENCE: Final = {
    "parameters": "weights and buffers: made by a module of torch.nn as it was built or moved",
    "gradients": "made in the backward pass, and let go by zero_grad, or after an optimiser's step began",
    "optimizer_state": "made by torch.optim in _init_group, or in its step and held beyond it",
    "activations": "made by the forward pass, let go by the backward pass",
    "temporaries": "made and let go within the forward pass, within backward, or within the optimiser",
    "workspace": "made by cuBLAS for itself",
    "untold": "no rule above: the stacks do not tell, or there are none",
}


class Origins(NamedTuple):
    """The category and place of each allocation."""

    category: Ints
    """The position in CATEGORIES."""
    place: Ints
    """The position in PLACES: the part of the program that allocated it."""
    backward_by_absence: bool
    """Whether stacks without Python counted as the backward pass."""


def origins(found: Lifetimes, events: MemoryEvents, marks: Ints) -> Origins:
    """The origins by the marks of each stack (`stack_marks`)."""
    made, let_go = _marks_of(found.stack, marks), _marks_of(found.free_stack, marks)
    # autograd runs the backward pass on threads of its own, whose stacks have no Python. They count as
    # backward only in a program that trains, by its stacks: elsewhere a thread of C++ may be anything.
    # only in a program that trains, by its stacks: elsewhere a thread of C++ may be anything.
    trains = bool(_has(marks, Mark.BACKWARD | Mark.OPTIMIZER | Mark.ZERO_GRAD).any())
    cpp_stacks = bool((~_has(marks, Mark.PYTHON) & (marks != 0)).any())
    by_absence = trains and not cpp_stacks
    backward = _in_backward(found.stack, made, by_absence) | _named_forward(found, events)
    freed_in_backward = _in_backward(found.free_stack, let_go, by_absence)
    optimizer = _has(made, Mark.OPTIMIZER) & ~_has(made, Mark.MODULE) & ~backward
    state = optimizer & _has(made, Mark.STATE)
    forward = _has(made, Mark.MODULE) & ~backward
    weights = _has(made, Mark.WEIGHTS) & ~backward & ~forward & ~optimizer
    python = _has(made, Mark.PYTHON) & ~backward & ~optimizer & ~weights

    first_optimizer = _next_event(events, marks, found.born, inside=True)
    first_other = _next_event(events, marks, found.born, inside=False)
    in_step = (first_optimizer < found.freed) & ~optimizer
    outlived = optimizer & (first_other < found.freed)
    gone = found.freed < found.n_positions

    # The first match counts; a later rule knows less.
    rules: tuple[tuple[str, Flags], ...] = (
        ("workspace", _has(made, Mark.WORKSPACE)),
        # Allocations that are never freed are excluded: cuBLAS's workspace for autograd's thread is one, and
        # was taken for a gradient (32 MiB on an H100).
        # gradient (32 MiB on an H100).
        ("gradients", backward & gone & (_has(let_go, Mark.ZERO_GRAD) | in_step)),
        ("temporaries", backward & gone & freed_in_backward),
        ("temporaries", optimizer & gone & _has(let_go, Mark.OPTIMIZER)),
        ("optimizer_state", state | outlived),
        ("temporaries", weights & gone & _has(let_go, Mark.WEIGHTS)),
        ("parameters", weights),
        ("activations", python & freed_in_backward),
        ("temporaries", forward & gone & _has(let_go, Mark.MODULE)),
    )
    category = np.select(
        [chosen for _, chosen in rules], [CATEGORIES.index(name) for name, _ in rules], UNTOLD
    )
    places = (weights, forward, backward, optimizer, python)
    place = np.select(places, range(len(places)), PLACES.index("no_stack"))
    return Origins(category, place, by_absence and bool((backward & (made == 0)).any()))


def _marks_of(stack: Ints, marks: Ints) -> Ints:
    """The marks of each stack. NONE has no marks, like an empty stack; `_in_backward` tells the two apart."""
    return np.where(stack == NONE, 0, np.r_[marks, 0][stack])


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


def _has(marks: Ints, mark: Mark) -> Flags:
    found: Flags = (marks & int(mark)) != 0
    return found


def _in_backward(stack: Ints, marks: Ints, by_absence: bool) -> Flags:
    found = _has(marks, Mark.BACKWARD)
    if by_absence:
        found |= (stack != NONE) & (marks == 0)
    return found


def _named_forward(found: Lifetimes, events: MemoryEvents) -> Flags:
    """Allocations whose event names the forward lines of their backward pass."""
    named = np.r_[False, events.has_forward]
    chosen: Flags = named[found.born]
    return chosen


def _next_event(events: MemoryEvents, marks: Ints, born: Ints, *, inside: bool) -> Ints:
    """The first position at or after `born` of an event inside the optimiser's step, or of one with a Python
    stack outside it; beyond all positions where there is none."""
    of_event = _marks_of(events.stack, marks)
    chosen = _has(of_event, Mark.OPTIMIZER)
    if not inside:
        chosen = ~chosen & _has(of_event, Mark.PYTHON)
    positions = np.r_[np.flatnonzero(chosen) + 1, len(events) + 2]
    found: Ints = positions[np.searchsorted(positions, born)]
    return found


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
