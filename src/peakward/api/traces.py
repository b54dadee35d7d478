"""`pw.trace` and `peakward trace`: a trace that is read from a file, on a device that the catalogue knows,
and what is told of it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from peakward.hardware import devices
from peakward.records import check
from peakward.records.errors import PeakwardError, quoted
from peakward.records.finding import Diagnosis, TraceReport
from peakward.records.profile import Job, Profile, Rank, WorkPhase
from peakward.traces.trace import Trace, compare, in_order


def trace(path: str | Path, *, device: str | None = None) -> Trace:
    """Read a trace of torch.profiler or Nsight Systems: `peakward trace`.

    Args:
        device: the model of its GPUs, such as "a100-sxm-40", where the trace does not say it or its name
            means several.

    Raises:
        PeakwardError: it is neither, or damaged; an unknown device, or one that the trace cannot be of.
    """
    place = check.path(path, "a trace")
    given = None if device is None else devices.device(check.line(device, "device"))
    found = Trace.open(place)
    meant = devices.meant_by_all((each.name, each.memory_bytes) for each in found.table.devices)
    names = ", ".join(
        repr(name) for name in dict.fromkeys(each.name for each in found.table.devices)
    )
    if given is not None and meant and given not in meant:
        raise PeakwardError(
            f"expected a device that {found.table.source} can be of, got {given.key}: it says {names}, "
            f"which is {devices.either(meant)}"
        )
    if given is not None or len(meant) == 1:
        found.device = given or meant[0]
    elif meant:
        kinds = {each.accelerator for each in meant}
        found.accelerator = kinds.pop() if len(kinds) == 1 else found.accelerator
        said = (
            f"The device may be {devices.either(meant)}: the name {names} does not say which, so nothing is "
            f"compared with a roof. Name it with `--device {meant[0].key}` or `pw.trace(path, device=…)`."
        )
        found.table = replace(found.table, limits=(*found.table.limits, said))
    return found


def report(
    traces: Sequence[Trace], *, phase: WorkPhase | None = None, range_name: str | None = None
) -> TraceReport:
    """Everything that is told of a trace, or of several as ranks of one job; or of a part of them.

    Raises:
        PeakwardError: two ranks of one number, or a range that a trace does not have.
    """
    traces = in_order(traces)
    job = compare(traces) if len(traces) > 1 else None
    ranks = (None,) if job is None else job.ranks
    profiles = tuple(each.profile(phase=phase, range_name=range_name) for each in traces)
    is_whole = phase is None and range_name is None
    told = zip(profiles, traces, ranks, strict=True) if is_whole else ()
    return TraceReport(
        profiles=profiles,
        diagnoses=tuple(_diagnosed(profile, trace, job, rank) for profile, trace, rank in told),
        job=job,
    )


def findings(trace: Trace) -> Diagnosis:
    """Find what holds a trace back, and what could not be judged from it alone: `peakward trace`."""
    if not isinstance(trace, Trace):
        raise PeakwardError(f"expected a trace, got {quoted(trace)}: `pw.trace(path)` reads one")
    return _diagnosed(trace.profile(), trace)


def _diagnosed(
    profile: Profile, trace: Trace, job: Job | None = None, rank: Rank | None = None
) -> Diagnosis:
    # Here, since the rules take a tenth of a second to load, which a trace that is only read does not need.
    from peakward.diagnose.diagnosis_input import DiagnosisInput
    from peakward.diagnose.examine import examine
    from peakward.prediction.planning.site import site

    where = None if trace.device is None else site(trace.device)
    return examine(
        DiagnosisInput(subject=profile.source, profile=profile, site=where, job=job, rank=rank)
    )
