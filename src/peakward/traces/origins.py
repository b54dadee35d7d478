"""The call that tells the purpose of each piece of GPU work, and notes on a trace's evidence and gaps.

Mostly it is the call that launched the work. For work of a graph it is the call that launched the same work
when the step ran outside the graph: a trace does not say which operator of a capture a graph's kernel came
from. But a graph captured from one stream runs in the order of its capture, and a step that ran uncaptured
before it (`peakward::rehearsal`, which Peakward's own profiles hold) launched the same work in that order.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from peakward.traces.host_work import is_of_host
from peakward.traces.launches import launch_rows
from peakward.traces.phase_names import PhaseEvidence
from peakward.traces.phases import Phases, brought_by_graphs
from peakward.traces.ranges import named_range
from peakward.traces.table import NONE, HostKind, Indices, Ints, TraceTable, restricted

REHEARSAL = "peakward::rehearsal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """For each GPU row, the call that tells its purpose."""

    calls: Indices
    """Positions in `Table.host`; NONE where unknown. They do not tell when the work was launched."""
    run: Ints
    """The number of the run of that call, from 0. For a rehearsal's call it is the launch of the graph."""
    rehearsed: NDArray[np.bool_]
    """Whether the call belongs to a rehearsal."""

    def of(self, rows: NDArray[np.bool_]) -> "Origins":
        """These rows only."""
        return replace(
            self, calls=self.calls[rows], run=self.run[rows], rehearsed=self.rehearsed[rows]
        )


def launched(launches: Indices) -> Origins:
    """The origins by each row's own launch."""
    return Origins(
        calls=launches,
        run=np.zeros(len(launches), dtype=np.int64),
        rehearsed=np.zeros(len(launches), dtype=bool),
    )


def without_rehearsal(table: TraceTable) -> tuple[TraceTable, Origins] | None:
    """The table without work that a rehearsal launched, and origins that tie graphs' work to the rehearsal.
    None where the trace has no rehearsal with GPU work, or no graph's work beside it.

    The work of a graph and of its process's rehearsal are compared in the order of their starts, from the
    front and from the back, as long as name and kind agree. Differing work in the middle keeps the launch of
    the graph as its origin.
    """
    if REHEARSAL not in table.names:
        return None
    launches = launch_rows(table)
    rehearsal = named_range(table, launches, REHEARSAL).inside
    by_graph = np.where(brought_by_graphs(table, launches) & ~rehearsal, launches, NONE)
    calls = np.unique(by_graph[by_graph != NONE])
    if not rehearsal.any() or not len(calls):
        return None
    found = launched(launches.copy())
    for run, call in enumerate(calls):
        rows = np.flatnonzero(by_graph == call)
        own = rehearsal & (table.gpu.process == table.gpu.process[rows[0]])
        rows, theirs = _same(table, rows, np.flatnonzero(own))
        found.calls[rows] = launches[theirs]
        found.run[rows] = run
        found.rehearsed[rows] = True
    return restricted(table, ~rehearsal), found.of(~rehearsal)


def _same(
    table: TraceTable, rows: NDArray[np.int64], others: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that equal the other rows beside them, and those others."""
    n = min(len(rows), len(others))
    n_front = _n_same(table, rows[:n], others[:n])
    n_back = min(n - n_front, _n_same(table, rows[::-1][:n], others[::-1][:n]))
    pick = np.r_[0:n_front, -n_back:0] if n_back else np.arange(n_front)
    return rows[pick], others[pick]


def _n_same(table: TraceTable, rows: NDArray[np.int64], others: NDArray[np.int64]) -> int:
    """The number of leading rows that are the same work, pair by pair."""
    gpu = table.gpu
    differ = (gpu.name[rows] != gpu.name[others]) | (gpu.kind[rows] != gpu.kind[others])
    return int(np.argmax(differ)) if differ.any() else len(rows)


_BY = {
    PhaseEvidence.PEAKWARD_RANGE: "Peakward's ranges",
    PhaseEvidence.USER_RANGE: "ranges that the program named",
    PhaseEvidence.TORCH_RANGE: "ranges of torch's own",
    PhaseEvidence.AUTOGRAD: "autograd's nodes",
    PhaseEvidence.NO_BACKWARD: "the absence of a backward pass, so that all is forward",
}


def evidence(table: TraceTable, phases: Phases, origins: Origins) -> tuple[str, ...]:
    """How the phases of the work were told, by the share of the time that each evidence covers."""
    duration_ns = table.gpu.duration_ns
    whole = int(duration_ns.sum())
    if not whole:
        return ()
    parts = []
    for kind, by in _BY.items():
        ns = int(duration_ns[phases.evidence == kind].sum())
        if ns:
            parts.append(f"{by} ({ns / whole:.1%})")
    untold = int(duration_ns[phases.evidence == PhaseEvidence.NOTHING].sum())
    if untold:
        parts.append(f"nothing ({untold / whole:.1%}, the phase `other`)")
    of = "operators' self time" if is_of_host(table) else "the durations of GPU work"
    said = [f"Phases were told by {', '.join(parts)}; shares are of {of}."]
    n_rehearsed = int(origins.rehearsed.sum())
    if n_rehearsed:
        share = int(duration_ns[origins.rehearsed].sum()) / whole
        said.append(
            f"The purpose of {n_rehearsed:,} pieces of GPU work that graphs launched "
            f"({share:.1%}) was told by the same work of a step that ran uncaptured before."
        )
    return tuple(said)


def incomplete(table: TraceTable, launches: Indices, phases: Phases) -> tuple[str, ...]:
    """Sentences on the trace's gaps, with how much is missing."""
    duration_ns = table.gpu.duration_ns
    whole = max(int(duration_ns.sum()), 1)
    said = [*table.limits, *_of_host(table)]
    orphans = launches == NONE
    if orphans.any():
        share = int(duration_ns[orphans].sum()) / whole
        said.append(
            f"Incomplete: the launch of {int(orphans.sum()):,} of {len(launches):,} pieces of GPU work "
            f"({share:.1%} of their time) is not in the trace, so neither is what launched them."
        )
    undivided = phases.undivided
    if undivided.any():
        share = int(duration_ns[undivided].sum()) / whole
        said.append(
            f"Incomplete: {int(undivided.sum()):,} pieces of GPU work ({share:.1%} of their time) were "
            "launched as graphs outside any phase; a trace does not say which operator of the capture "
            "each belongs to."
        )
    return tuple(said)


def _of_host(table: TraceTable) -> list[str]:
    """A sentence on the meaning of self time."""
    if not is_of_host(table):
        return []
    said = [
        "The trace has no GPU work: times are the self time of the framework's operators on "
        "the host, not of the work inside the libraries that they call."
    ]
    n_calls = int((table.host.kind == HostKind.CALL).sum())
    if n_calls:
        said.append(
            f"Incomplete: the host made {n_calls:,} calls into a GPU's driver, but the GPU's "
            "work is not in the trace. Profile with the activities of the GPU on."
        )
    return said
