"""`pw.trace` and `peakward trace`: a trace that is read from a file, on a device that the catalogue knows,
and what is told of it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from peakward.hardware import devices
from peakward.records import check
from peakward.records.errors import PeakwardError, quoted
from peakward.records.finding import Diagnosis, TraceReport
from peakward.records.profile import Job, Profile, Rank, WorkPhase
from peakward.traces.table import JobRank
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


class Ranks(NamedTuple):
    """The traces of one job that can be compared."""

    traces: tuple[Trace, ...]
    """One of each rank."""
    notes: tuple[str, ...]
    """A sentence for each file that is left out, and one for ranks that the files' names tell."""


def ranks(paths: Sequence[str | Path], *, device: str | None = None) -> Ranks:
    """Read the files of one job: `peakward trace rank*.json.gz`. What cannot be read or compared is left out,
    as long as any is left.

    Raises:
        PeakwardError: as `trace`, of the only file, or where no file can be read; an unknown device.
    """
    read: list[tuple[Path, Trace]] = []
    notes: list[str] = []
    for path in paths:
        try:
            read.append((Path(path), trace(path, device=device)))
        except PeakwardError as error:
            if len(paths) == 1 or (path == paths[-1] and not read):
                raise
            notes.append(f"Left out: {error}.")
    return _of_one_job(read, notes)


def _of_one_job(read: Sequence[tuple[Path, Trace]], notes: Sequence[str]) -> Ranks:
    """One trace of each rank. A file says its rank, or else its name does, or its folder's."""
    said, every = [*notes], [each for _, each in read]
    if len(every) == 1:
        return Ranks(tuple(every), tuple(said))
    kept = [each for each in every if not each.is_of_host] or every
    said += [
        f"Left out: {each.table.source} has no GPU work, which is what ranks are compared by."
        for each in every
        if each not in kept
    ]
    sizes = Counter(each.table.job.world_size for each in kept if each.table.job is not None)
    size = sizes.most_common(1)[0][0] if sizes else None
    by_name = {at: _rank_in(path) for at, path in enumerate(p for p, t in read if t in kept)}
    named = []
    found: dict[int | str, Trace] = {}
    for at, each in enumerate(kept):
        job, rank = each.table.job, by_name[at]
        if job is None and rank is not None and (size is not None or None not in by_name.values()):
            largest = max(rank, *(known or 0 for known in by_name.values()))
            job = JobRank(rank, size or largest + 1)
            each.table = replace(each.table, job=job)
            named.append(each.table.source)
        if job is None and size is not None:
            said.append(f"Left out: {each.table.source} does not say its rank, as the others do.")
        elif job is not None and size is not None and job.world_size != size:
            said.append(
                f"Left out: {each.table.source} is of a job of {job.world_size:,} ranks, "
                f"the others of one of {size:,}."
            )
        elif job is not None and (first := found.setdefault(job.rank, each)) is not each:
            said.append(
                f"Left out: {each.table.source} is of rank {job.rank}, as {first.table.source} is."
            )
        elif job is None:
            found[f"file {at}"] = each
    if named:
        said.append(
            f"The rank is taken from the name of {', '.join(named)}, which does not say it."
        )
    return Ranks(tuple(found.values()), tuple(said))


_RANK = re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


def _rank_in(path: Path) -> int | None:
    found = _RANK.search(path.name) or _RANK.search(path.parent.name)
    return None if found is None else int(found[1])


def report(
    traces: Sequence[Trace],
    *,
    phase: WorkPhase | None = None,
    range_name: str | None = None,
    notes: Sequence[str] = (),
) -> TraceReport:
    """Everything that is told of a trace, or of several as ranks of one job; or of a part of them.

    Args:
        notes: of `ranks`.

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
        notes=tuple(notes),
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
