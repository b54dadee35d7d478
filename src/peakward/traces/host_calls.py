"""The host's calls into the GPU's runtime and driver, and Python's garbage collections."""

import re

import numpy as np
from numpy.typing import NDArray

from peakward.records.profile import HostCall, HostWork
from peakward.traces.by_name import by_name
from peakward.traces.calls import plain_name
from peakward.traces.table import HostKind, Table

COLLECT = re.compile(r"<built-in (?:function|method) collect(?: of module.*)?>$")
"""The name of a call of `gc.collect` in torch's profiler."""


def host_calls(table: Table, among: NDArray[np.bool_] | None = None) -> HostWork:
    """Calls into the runtime by name, and garbage collections, among the host rows `among`; None: all."""
    host = table.host
    chosen = np.ones(len(host), dtype=np.bool_) if among is None else among
    python = np.flatnonzero((host.kind == HostKind.PYTHON) & chosen)
    collects = by_name(table.names, host.name[python], lambda name: bool(COLLECT.search(name)))
    return HostWork(
        calls=_calls(table, chosen),
        n_python=len(python),
        collections=_call(table, "gc.collect", python[collects == 1]),
    )


def rows_by_call(table: Table) -> dict[str, NDArray[np.intp]]:
    """The rows of calls into the runtime and driver, by plain name."""
    host = table.host
    calls = np.flatnonzero(host.kind == HostKind.CALL)
    by_plain: dict[str, list[NDArray[np.intp]]] = {}
    for name in np.unique(host.name[calls]).tolist():
        rows = calls[host.name[calls] == name]
        by_plain.setdefault(plain_name(table.names[name]), []).append(rows)
    return {name: np.concatenate(rows) for name, rows in by_plain.items()}


def _calls(table: Table, among: NDArray[np.bool_]) -> tuple[HostCall, ...]:
    made = (_call(table, name, rows[among[rows]]) for name, rows in rows_by_call(table).items())
    found = [each for each in made if each is not None]
    return tuple(sorted(found, key=lambda each: (-each.sum_ns, each.name)))


def _call(table: Table, name: str, rows: NDArray[np.intp]) -> HostCall | None:
    if not len(rows):
        return None
    durations = table.host.duration_ns[rows]
    return HostCall(
        name=name, n=len(rows), sum_ns=int(durations.sum()), longest_ns=int(durations.max())
    )
