"""Notes for a trace's report: its evidence and its gaps."""

from peakward.traces.host_work import is_of_host
from peakward.traces.origins import Origins
from peakward.traces.phase_names import Evidence
from peakward.traces.phases import Phases
from peakward.traces.table import NONE, HostKind, Indices, Table

_BY = {
    Evidence.PEAKWARD_RANGE: "Peakward's ranges",
    Evidence.USER_RANGE: "ranges that the program named",
    Evidence.TORCH_RANGE: "ranges of torch's own",
    Evidence.AUTOGRAD: "autograd's nodes",
    Evidence.NO_BACKWARD: "the absence of a backward pass, so that all is forward",
}


def evidence(table: Table, phases: Phases, origins: Origins) -> tuple[str, ...]:
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
    untold = int(duration_ns[phases.evidence == Evidence.NOTHING].sum())
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


def incomplete(table: Table, launches: Indices, phases: Phases) -> tuple[str, ...]:
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


def _of_host(table: Table) -> list[str]:
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
