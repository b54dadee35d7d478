"""The host rows whose names put their work into a phase."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peakward.traces.marks import backward_rows, named, processes_of
from peakward.traces.nesting import rows_of
from peakward.traces.phase_names import Evidence, PhaseCode, said_by
from peakward.traces.table import Codes, HostKind, Ints, Table

_OPTIMIZERS_OWN = re.compile(
    r"aten::_(?:fused_(?:adam|adamw|sgd|adagrad)_?|foreach_zero_"
    r"|amp_(?:foreach_non_finite_check_and_unscale|update_scale)_?)$"
)
"""Operators that torch uses for nothing else: fused updates, `zero_grad` and the gradients of a scaled
loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRanges:
    """Host rows with a phase, sorted by start."""

    rows: NDArray[np.int64]
    phase: Codes
    """PhaseCode."""
    evidence: Codes
    """The Evidence: whose name it is."""

    def of(self, phase: PhaseCode, *evidence: Evidence) -> NDArray[np.int64]:
        """The rows of a phase, only with this evidence where any is given."""
        wanted = (self.phase == phase) & np.isin(self.evidence, evidence or list(Evidence))
        return self.rows[np.flatnonzero(wanted)]


def phase_ranges(table: Table) -> PhaseRanges:
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
        Evidence.TORCH_RANGE,
        0,
    )
    phase, evidence, unsure = by_name[name].T
    says = (phase != PhaseCode.OTHER) & (
        (kind == HostKind.RANGE) | (evidence != Evidence.USER_RANGE)
    )
    backward = np.union1d(
        backward_rows(table), rows[says & (phase == PhaseCode.BACKWARD) & (unsure == 0)]
    )
    says &= (unsure == 0) | _beside_a_backward(table, rows, backward)
    return PhaseRanges(rows=rows[says], phase=phase[says], evidence=evidence[says])


def _beside_a_backward(
    table: Table, rows: NDArray[np.int64], backward: NDArray[np.int64]
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
