"""What a trace's report must say about itself: by what evidence, and what is missing."""

from peakward.traces.phase_names import Evidence
from peakward.traces.phases import Phases
from peakward.traces.table import NONE, Indices, Table

_BY = {
    Evidence.PEAKWARD_RANGE: "Peakward's ranges",
    Evidence.USER_RANGE: "ranges that the program named",
    Evidence.TORCH_RANGE: "ranges of torch's own",
    Evidence.AUTOGRAD: "autograd's nodes",
    Evidence.NO_BACKWARD: "no backward pass being there, so that all is forward",
}


def evidence(table: Table, phases: Phases) -> tuple[str, ...]:
    """How the phases of the work were told, by share of the time it takes."""
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
    return (f"Phases were told by {', '.join(parts)}; shares are of the durations of GPU work.",)


def incomplete(table: Table, launches: Indices, phases: Phases) -> tuple[str, ...]:
    """What the trace could not say, and how much is missing."""
    duration_ns = table.gpu.duration_ns
    whole = max(int(duration_ns.sum()), 1)
    said = list(table.limits)
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
