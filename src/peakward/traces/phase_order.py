"""Derives the phase from the order of events where no name gives it.

A step is forward, backward, optimizer: once or, with micro-batches, several times. Backward passes and
optimizers are known by their rows. Work between them is told by its neighbours, within one process and one
marked step.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.traces.marks import backward_rows, named, processes_of
from peakward.traces.nesting import nest, rows_of
from peakward.traces.phase_names import PhaseCode
from peakward.traces.phase_ranges import PhaseRanges
from peakward.traces.steps import step_rows
from peakward.traces.table import NONE, Codes, HostKind, Indices, Ints, Table

_MODELS = re.compile(
    r"aten::(?:\w*mm|linear|matmul|einsum|embedding|\w*convolution|\w*attention\w*)$"
    r"|## Call CompiledFxGraph|Torch-Compiled Region"
)
"""Operators that a model's forward pass has and bookkeeping beside a step does not."""
_ZERO_GRAD = re.compile(r"(?i:.*zero_?grad)|aten::_foreach_zero_$")
_STEP = PhaseCode.OTHER
"""Stands for the beginning of a step among the events."""


class Events(NamedTuple):
    """Host rows that are a backward pass's or an optimizer's, or that begin a step."""

    backward: NDArray[np.int64]
    optimizer: NDArray[np.int64]
    """Optimizers that update. `zero_grad` is left out: a program may call it anywhere."""
    steps: NDArray[np.int64]


def events_of(table: Table, said: PhaseRanges) -> Events:
    """The events by autograd's nodes and by the phases of ranges."""
    optimizer = said.of(PhaseCode.OPTIMIZER)
    zeroes = named(table, optimizer, _ZERO_GRAD)
    return Events(
        backward=np.concatenate([backward_rows(table), said.of(PhaseCode.BACKWARD)]),
        optimizer=optimizer[~zeroes],
        steps=step_rows(table),
    )


def by_neighbours(table: Table, events: Events, process: Indices, at_ns: Ints) -> Codes:
    """The phase for each process and time outside the events; OTHER for a process of NONE.

    Time before a backward pass is forward, whatever comes before. Time between a backward pass and an
    optimizer, or between two optimizers, is the optimizer's: gradients are unscaled, checked, clipped. Time
    followed by neither, such as an evaluation, is forward if it holds a model's operators; the rest is OTHER.
    """
    models = _models_operators(table, events)
    found = np.full(len(at_ns), PhaseCode.OTHER, dtype=np.uint8)
    rows = np.concatenate([events.backward, events.optimizer, events.steps])
    phase = np.repeat(
        [PhaseCode.BACKWARD, PhaseCode.OPTIMIZER, _STEP],
        [len(each) for each in (events.backward, events.optimizer, events.steps)],
    )
    start, end = table.host.start_ns[rows].copy(), table.host.end_ns[rows].copy()
    end[phase == _STEP] = start[phase == _STEP]
    start[phase == PhaseCode.OPTIMIZER] = update_starts(table, events.optimizer, events.backward)
    of_process = processes_of(table)
    for each in np.unique(of_process[rows]):
        here = np.flatnonzero(of_process[rows] == each)
        asked = np.flatnonzero(process == each)
        its_models = table.host.start_ns[models[of_process[models] == each]]
        order = _Order.of(start[here], end[here], phase[here])
        found[asked] = order.phase(at_ns[asked], its_models)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The events of one process, by their beginnings and by their ends."""

    start_ns: Ints
    starting: NDArray[np.int64]
    end_ns: Ints
    ending: NDArray[np.int64]

    @classmethod
    def of(cls, start_ns: Ints, end_ns: Ints, phase: NDArray[np.int64]) -> "_Order":
        """The order of these events. Where several begin together, a backward pass comes first."""
        first = np.lexsort((phase, start_ns))
        last = np.lexsort((phase, end_ns))
        return cls(
            start_ns=start_ns[first], starting=phase[first], end_ns=end_ns[last], ending=phase[last]
        )

    def phase(self, at_ns: Ints, models_ns: Ints) -> Codes:
        """The phase at each time. `models_ns` are the starts of a model's operators."""
        place = np.searchsorted(self.start_ns, at_ns)
        after = np.append(self.starting, _STEP)[place]
        before = np.append(_STEP, self.ending)[np.searchsorted(self.end_ns, at_ns, side="right")]
        backward_is_seen = PhaseCode.BACKWARD in self.starting
        holds_models = np.isin(place, np.searchsorted(self.start_ns, models_ns))
        between = (before == PhaseCode.OPTIMIZER) & ~holds_models & backward_is_seen
        return np.select(
            [
                after == PhaseCode.BACKWARD,
                (after == PhaseCode.OPTIMIZER) & ((before == PhaseCode.BACKWARD) | between),
                (after == _STEP) & holds_models,
            ],
            [PhaseCode.FORWARD, PhaseCode.OPTIMIZER, PhaseCode.FORWARD],
            PhaseCode.OTHER,
        ).astype(np.uint8)


def _models_operators(table: Table, events: Events) -> NDArray[np.int64]:
    """A model's operators outside backward passes and optimizers."""
    host = table.host
    rows = rows_of(host, (HostKind.OP, HostKind.RANGE))
    rows = rows[named(table, rows, _MODELS)]
    known = nest(host, np.unique(np.concatenate([events.backward, events.optimizer])))
    inside = known.innermost(host.thread[rows], host.start_ns[rows])
    return rows[np.flatnonzero(inside == NONE)]


def update_starts(table: Table, optimizer: NDArray[np.int64], backward: NDArray[np.int64]) -> Ints:
    """The time at which each of these optimizers begins to update. One that calls a closure, as LBFGS or
    Lightning does, begins when the last backward pass inside it has ended."""
    host, process = table.host, processes_of(table)
    start = np.array(host.start_ns[optimizer], dtype=np.int64)
    for each in np.unique(process[backward]):
        its = backward[process[backward] == each]
        its = its[np.argsort(host.start_ns[its], kind="stable")]
        ends = np.maximum.accumulate(host.end_ns[its])
        calling = np.flatnonzero(process[optimizer] == each)
        until = host.end_ns[optimizer[calling]]
        begun = np.searchsorted(host.start_ns[its], until)
        inside = begun > np.searchsorted(host.start_ns[its], start[calling])
        last = np.minimum(ends[np.maximum(begun - 1, 0)], until)
        start[calling] = np.where(inside, last, start[calling])
    return start
