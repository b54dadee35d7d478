"""The phase of each piece of GPU work, and the evidence for it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peakward.traces.calls import CallKind, call_kinds
from peakward.traces.marks import backward_rows, processes_of
from peakward.traces.nesting import nest, rows_of
from peakward.traces.phase_names import Evidence, PhaseCode
from peakward.traces.phase_order import by_neighbours, events_of, update_starts
from peakward.traces.phase_ranges import PhaseRanges, phase_ranges
from peakward.traces.ranges import Launches, innermost_at, launch_sites
from peakward.traces.table import NONE, Codes, HostKind, Indices, Ints, Table

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


def phases(table: Table, launches: Indices) -> Phases:
    """The phase of each GPU row, by the strongest available evidence.

    Ranges come first, Peakward's before the user's and torch's. A launch on autograd's thread counts as
    inside the open ranges of the thread that waits for it. Then come autograd's nodes. Where a backward pass
    and a forward range nest, in either order, the backward pass wins: recomputation for a checkpoint is its
    own work. An optimizer wins over the ranges around it, but not over the closure that it calls. Where no
    name gives a phase, neighbours decide for operators (`phase_order`); they are forward if the process has
    no backward pass and no optimizer at all. The rest is OTHER, and so is work of unknown launch.
    """
    sites, said = launch_sites(table, launches), phase_ranges(table)
    code = np.full(len(table.gpu), PhaseCode.OTHER, dtype=np.uint8)
    evidence = np.full(len(table.gpu), Evidence.NOTHING, dtype=np.uint8)
    for each in (_by_order, _by_ranges_and_nodes, _by_our_ranges):
        its_code, its_evidence = each(table, launches, sites, said)
        knows = its_code != PhaseCode.OTHER
        code[knows], evidence[knows] = its_code[knows], its_evidence[knows]
    undivided = brought_by_graphs(table, launches) & (code == PhaseCode.OTHER)
    return Phases(code=code, evidence=evidence, undivided=undivided)


def _by_our_ranges(
    table: Table, _launches: Indices, sites: Launches, said: PhaseRanges
) -> tuple[Codes, Codes]:
    """The phase by Peakward's ranges, which follow one another, so the innermost is the only one."""
    ours = said.evidence == Evidence.PEAKWARD_RANGE
    row = innermost_at(table, sites, said.rows[ours])
    return _of_rows(said, row)


def _of_rows(said: PhaseRanges, row: Indices) -> tuple[Codes, Codes]:
    """Phase and evidence of host rows; OTHER and NOTHING for NONE."""
    position = np.searchsorted(said.rows, row)
    phase = np.append(said.phase, np.uint8(PhaseCode.OTHER))
    evidence = np.append(said.evidence, np.uint8(Evidence.NOTHING))
    position = np.where(row == NONE, len(said.rows), position)
    return phase[position], evidence[position]


def _by_ranges_and_nodes(
    table: Table, _launches: Indices, sites: Launches, said: PhaseRanges
) -> tuple[Codes, Codes]:
    """The phase by the user's and torch's ranges and by autograd's nodes."""
    theirs = (Evidence.USER_RANGE, Evidence.TORCH_RANGE)
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
    code[by_node], evidence[by_node] = PhaseCode.BACKWARD, Evidence.AUTOGRAD
    for phase in _PHASES:
        by_user = innermost_at(table, sites, said.of(phase, Evidence.USER_RANGE)) != NONE
        evidence[by_user & (code == phase)] = Evidence.USER_RANGE
    return code, evidence


def _update_starts(table: Table, said: PhaseRanges, row: Indices) -> Ints:
    """The time at which these optimizers begin to update; long ago for NONE."""
    rows, which = np.unique(row[row != NONE], return_inverse=True)
    found = np.full(len(row), _LONG_AGO)
    found[row != NONE] = update_starts(table, rows, events_of(table, said).backward)[which]
    return found


def _starts(table: Table, row: Indices) -> Ints:
    """The start of these host rows; long ago for NONE."""
    return np.append(table.host.start_ns, _LONG_AGO)[row]


def _in_backward(table: Table, sites: Launches) -> tuple[NDArray[np.bool_], Ints]:
    """Whether each launch belongs to a backward pass by autograd's rows, and the start of its node.

    All launches of autograd's own threads belong to it, including hooks between its nodes.
    """
    rows = backward_rows(table)
    node = nest(table.host, rows).innermost(sites.thread, sites.at_ns)
    on_its_thread = np.isin(sites.thread, table.host.thread[rows]) & (sites.waiting != NONE)
    return on_its_thread | (node != NONE), _starts(table, node)


def _by_order(
    table: Table, launches: Indices, sites: Launches, said: PhaseRanges
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
    evidence = np.select([infers, known], [Evidence.NO_BACKWARD, Evidence.AUTOGRAD], 0)
    return code, evidence.astype(np.uint8)


def brought_by_graphs(table: Table, launches: Indices) -> NDArray[np.bool_]:
    """Mask of the GPU rows that a captured graph launched."""
    by_call = np.append(call_kinds(table) == CallKind.GRAPH, False)[launches]
    brought: NDArray[np.bool_] = by_call | (table.gpu.graph != NONE)
    return brought
