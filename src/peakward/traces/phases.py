"""The phase of each piece of GPU work, from names of ranges or the order of events.

A step is forward, backward, optimizer: once or, with micro-batches, several times. Backward passes and
optimizers are known by their rows. Work between them is told by its neighbours, within one process and one
marked step.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from peakward.traces.calls import CallKind, call_kinds
from peakward.traces.intervals import nest, rows_of
from peakward.traces.phase_names import PhaseCode, PhaseEvidence, said_by
from peakward.traces.ranges import (
    Launches,
    backward_rows,
    innermost_at,
    launch_sites,
    named,
    processes_of,
)
from peakward.traces.step_spans import step_rows
from peakward.traces.table import NONE, Codes, HostKind, Indices, Ints, TraceTable

_LONG_AGO = np.iinfo(np.int64).min
_PHASES = (PhaseCode.FORWARD, PhaseCode.BACKWARD, PhaseCode.OPTIMIZER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """A phase and the evidence for it, for each GPU row."""

    code: Codes
    """PhaseCode."""
    evidence: Codes
    """Evidence."""
    undivided: NDArray[np.bool_]
    """Rows that a graph launched outside every phase, such as a captured step. A trace does not divide them,
    so they are OTHER."""

    def of(self, rows: NDArray[np.bool_]) -> "Phases":
        """These rows only."""
        return Phases(
            code=self.code[rows], evidence=self.evidence[rows], undivided=self.undivided[rows]
        )


def phases(table: TraceTable, launches: Indices) -> Phases:
    """The phase of each GPU row, by the strongest available evidence.

    Ranges come first, Peakward's before the user's and torch's. A launch on autograd's thread counts as
    inside the open ranges of the thread that waits for it. Then come autograd's nodes. Where a backward pass
    and a forward range nest, in either order, the backward pass wins: recomputation for a checkpoint is its
    own work. An optimizer wins over the ranges around it, but not over the closure that it calls. Where no
    name gives a phase, neighbours decide for operators (`by_neighbours`); they are forward if the process has
    no backward pass and no optimizer at all. The rest is OTHER, and so is work of unknown launch.
    """
    sites, said = launch_sites(table, launches), phase_ranges(table)
    code = np.full(len(table.gpu), PhaseCode.OTHER, dtype=np.uint8)
    evidence = np.full(len(table.gpu), PhaseEvidence.NOTHING, dtype=np.uint8)
    for each in (_by_order, _by_ranges_and_nodes, _by_our_ranges):
        its_code, its_evidence = each(table, launches, sites, said)
        knows = its_code != PhaseCode.OTHER
        code[knows], evidence[knows] = its_code[knows], its_evidence[knows]
    undivided = brought_by_graphs(table, launches) & (code == PhaseCode.OTHER)
    return Phases(code=code, evidence=evidence, undivided=undivided)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRanges:
    """Host rows with a phase, sorted by start."""

    rows: NDArray[np.int64]
    phase: Codes
    """PhaseCode."""
    evidence: Codes
    """The Evidence: whose name it is."""

    def of(self, phase: PhaseCode, *evidence: PhaseEvidence) -> NDArray[np.int64]:
        """The rows of a phase, only with this evidence where any is given."""
        wanted = (self.phase == phase) & np.isin(self.evidence, evidence or list(PhaseEvidence))
        return self.rows[np.flatnonzero(wanted)]


def _by_our_ranges(
    table: TraceTable, _launches: Indices, sites: Launches, said: PhaseRanges
) -> tuple[Codes, Codes]:
    """The phase by Peakward's ranges, which follow one another, so the innermost is the only one."""
    ours = said.evidence == PhaseEvidence.PEAKWARD_RANGE
    row = innermost_at(table, sites, said.rows[ours])
    return _of_rows(said, row)


def _of_rows(said: PhaseRanges, row: Indices) -> tuple[Codes, Codes]:
    """Phase and evidence of host rows; OTHER and NOTHING for NONE."""
    position = np.searchsorted(said.rows, row)
    phase = np.append(said.phase, np.uint8(PhaseCode.OTHER))
    evidence = np.append(said.evidence, np.uint8(PhaseEvidence.NOTHING))
    position = np.where(row == NONE, len(said.rows), position)
    return phase[position], evidence[position]


def _by_ranges_and_nodes(
    table: TraceTable, _launches: Indices, sites: Launches, said: PhaseRanges
) -> tuple[Codes, Codes]:
    """The phase by the user's and torch's ranges and by autograd's nodes."""
    theirs = (PhaseEvidence.USER_RANGE, PhaseEvidence.TORCH_RANGE)
    forward, backward, optimizer = (
        innermost_at(table, sites, said.of(phase, *theirs)) for phase in _PHASES
    )
    in_node, node_ns = _in_backward(table, sites)
    is_backward = in_node | (backward != NONE)
    began = np.maximum(_starts(table, backward), node_ns)
    began = np.where(is_backward, began, _starts(table, forward))
    updates = (_starts(table, optimizer) >= began) & (
        sites.at_ns >= _update_starts(table, said, optimizer)
    )
    is_optimizer = (optimizer != NONE) & updates
    row = np.select([is_optimizer, is_backward], [optimizer, backward], forward)
    code, evidence = _of_rows(said, row)
    by_node = is_backward & (row == NONE)
    code[by_node], evidence[by_node] = PhaseCode.BACKWARD, PhaseEvidence.AUTOGRAD
    for phase in _PHASES:
        by_user = innermost_at(table, sites, said.of(phase, PhaseEvidence.USER_RANGE)) != NONE
        evidence[by_user & (code == phase)] = PhaseEvidence.USER_RANGE
    return code, evidence


def _update_starts(table: TraceTable, said: PhaseRanges, row: Indices) -> Ints:
    """The time at which these optimizers begin to update; long ago for NONE."""
    rows, which = np.unique(row[row != NONE], return_inverse=True)
    found = np.full(len(row), _LONG_AGO)
    found[row != NONE] = update_starts(table, rows, events_of(table, said).backward)[which]
    return found


def _starts(table: TraceTable, row: Indices) -> Ints:
    """The start of these host rows; long ago for NONE."""
    return np.append(table.host.start_ns, _LONG_AGO)[row]


def _in_backward(table: TraceTable, sites: Launches) -> tuple[NDArray[np.bool_], Ints]:
    """Whether each launch belongs to a backward pass by autograd's rows, and the start of its node.

    All launches of autograd's own threads belong to it, including hooks between its nodes.
    """
    rows = backward_rows(table)
    node = nest(table.host, rows).innermost(sites.thread, sites.at_ns)
    on_its_thread = np.isin(sites.thread, table.host.thread[rows]) & (sites.waiting != NONE)
    return on_its_thread | (node != NONE), _starts(table, node)


def _by_order(
    table: TraceTable, launches: Indices, sites: Launches, said: PhaseRanges
) -> tuple[Codes, Codes]:
    """The phase by the events before and after, for launches among operators."""
    ops = rows_of(table.host, (HostKind.OP,))
    in_op = nest(table.host, ops).innermost(sites.thread, sites.at_ns) != NONE
    beside_ops = np.isin(sites.thread, table.host.thread[ops])
    asked = in_op | (beside_ops & ~brought_by_graphs(table, launches))
    events = events_of(table, said)
    process_of = np.append(table.process_of_thread, NONE)
    process = np.where(asked, process_of[sites.thread], NONE)
    trains = processes_of(table)[np.concatenate([events.backward, said.of(PhaseCode.OPTIMIZER)])]
    infers = asked & ~np.isin(process, trains)
    code = by_neighbours(table, events, process, sites.at_ns)
    code[infers] = PhaseCode.FORWARD
    known = code != PhaseCode.OTHER
    evidence = np.select([infers, known], [PhaseEvidence.NO_BACKWARD, PhaseEvidence.AUTOGRAD], 0)
    return code, evidence.astype(np.uint8)


def brought_by_graphs(table: TraceTable, launches: Indices) -> NDArray[np.bool_]:
    """Mask of the GPU rows that a captured graph launched."""
    by_call = np.append(call_kinds(table) == CallKind.GRAPH, False)[launches]
    brought: NDArray[np.bool_] = by_call | (table.gpu.graph != NONE)
    return brought


_OPTIMIZERS_OWN = re.compile(
    r"aten::_(?:fused_(?:adam|adamw|sgd|adagrad)_?|foreach_zero_"
    r"|amp_(?:foreach_non_finite_check_and_unscale|update_scale)_?)$"
)
"""Operators that torch uses for nothing else: fused updates, `zero_grad` and the gradients of a scaled
loss."""


def phase_ranges(table: TraceTable) -> PhaseRanges:
    """The phases from the names of ranges, and from operators that torch or Peakward named after a phase."""
    rows = rows_of(table.host, (HostKind.RANGE, HostKind.OP))
    name, kind = table.host.name[rows], table.host.kind[rows]
    by_name = np.zeros((len(table.names), 3), dtype=np.uint8)
    by_name[:, 0] = PhaseCode.OTHER
    for position in np.unique(name):
        if said := said_by(table.names[position]):
            by_name[position] = (said.phase, said.evidence, not said.is_sure)
    by_name[name[named(table, rows, _OPTIMIZERS_OWN)]] = (
        PhaseCode.OPTIMIZER,
        PhaseEvidence.TORCH_RANGE,
        0,
    )
    phase, evidence, unsure = by_name[name].T
    says = (phase != PhaseCode.OTHER) & (
        (kind == HostKind.RANGE) | (evidence != PhaseEvidence.USER_RANGE)
    )
    backward = np.union1d(
        backward_rows(table), rows[says & (phase == PhaseCode.BACKWARD) & (unsure == 0)]
    )
    says &= (unsure == 0) | _beside_a_backward(table, rows, backward)
    return PhaseRanges(rows=rows[says], phase=phase[says], evidence=evidence[says])


def _beside_a_backward(
    table: TraceTable, rows: NDArray[np.int64], backward: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether no backward pass begins within a row, although some do elsewhere in its process."""
    host = table.host
    process = processes_of(table)
    beside = np.zeros(len(rows), dtype=bool)
    for each in np.unique(process[backward]):
        begins: Ints = host.start_ns[backward[process[backward] == each]]
        mine = np.flatnonzero(process[rows] == each)
        before = np.searchsorted(begins, host.start_ns[rows[mine]])
        within = np.searchsorted(begins, host.end_ns[rows[mine]]) - before
        beside[mine] = within == 0
    return beside


_MODELS = re.compile(
    r"aten::(?:\w*mm|linear|matmul|einsum|embedding|\w*convolution|\w*attention\w*)$"
    r"|## Call CompiledFxGraph|Torch-Compiled Region"
)
"""Operators that a model's forward pass has and bookkeeping beside a step does not."""
_ZERO_GRAD = re.compile(r"(?i:.*zero_?grad)|aten::_foreach_zero_$")
_STEP = PhaseCode.OTHER
"""Stands for the beginning of a step among the events."""


class PhaseRows(NamedTuple):
    """Host rows that are a backward pass's or an optimizer's, or that begin a step."""

    backward: NDArray[np.int64]
    optimizer: NDArray[np.int64]
    """Optimizers that update. `zero_grad` is left out: a program may call it anywhere."""
    steps: NDArray[np.int64]


def events_of(table: TraceTable, said: PhaseRanges) -> PhaseRows:
    """The events by autograd's nodes and by the phases of ranges."""
    optimizer = said.of(PhaseCode.OPTIMIZER)
    zeroes = named(table, optimizer, _ZERO_GRAD)
    return PhaseRows(
        backward=np.concatenate([backward_rows(table), said.of(PhaseCode.BACKWARD)]),
        optimizer=optimizer[~zeroes],
        steps=step_rows(table),
    )


def by_neighbours(table: TraceTable, events: PhaseRows, process: Indices, at_ns: Ints) -> Codes:
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


def _models_operators(table: TraceTable, events: PhaseRows) -> NDArray[np.int64]:
    """A model's operators outside backward passes and optimizers."""
    host = table.host
    rows = rows_of(host, (HostKind.OP, HostKind.RANGE))
    rows = rows[named(table, rows, _MODELS)]
    known = nest(host, np.unique(np.concatenate([events.backward, events.optimizer])))
    inside = known.innermost(host.thread[rows], host.start_ns[rows])
    return rows[np.flatnonzero(inside == NONE)]


def update_starts(
    table: TraceTable, optimizer: NDArray[np.int64], backward: NDArray[np.int64]
) -> Ints:
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
