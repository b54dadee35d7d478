"""The categories and places of allocations by their stacks, never by size or order of events.

Each rule names its evidence. An allocation without evidence is `untold`.
"""

from typing import Final, NamedTuple

import numpy as np

from peakward.traces.memory.frame_marks import Mark
from peakward.traces.memory.lifetimes import Lifetimes
from peakward.traces.memory.table import NONE, Events, Flags, Ints

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


def origins(found: Lifetimes, events: Events, marks: Ints) -> Origins:
    """The origins by the marks of each stack (`frame_marks.stack_marks`)."""
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


def _has(marks: Ints, mark: Mark) -> Flags:
    found: Flags = (marks & int(mark)) != 0
    return found


def _in_backward(stack: Ints, marks: Ints, by_absence: bool) -> Flags:
    found = _has(marks, Mark.BACKWARD)
    if by_absence:
        found |= (stack != NONE) & (marks == 0)
    return found


def _named_forward(found: Lifetimes, events: Events) -> Flags:
    """Allocations whose event names the forward lines of their backward pass."""
    named = np.r_[False, events.has_forward]
    chosen: Flags = named[found.born]
    return chosen


def _next_event(events: Events, marks: Ints, born: Ints, *, inside: bool) -> Ints:
    """The first position at or after `born` of an event inside the optimiser's step, or of one with a Python
    stack outside it; beyond all positions where there is none."""
    of_event = _marks_of(events.stack, marks)
    chosen = _has(of_event, Mark.OPTIMIZER)
    if not inside:
        chosen = ~chosen & _has(of_event, Mark.PYTHON)
    positions = np.r_[np.flatnonzero(chosen) + 1, len(events) + 2]
    found: Ints = positions[np.searchsorted(positions, born)]
    return found
