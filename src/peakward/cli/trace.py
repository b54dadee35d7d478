"""Show where a trace's time went: PyTorch profiler or Nsight Systems."""

from typing import TYPE_CHECKING, Annotated, get_args

import msgspec
import tyro

from peakward.cli import output, values
from peakward.cli.vocabulary import ViewOptions, Views, option, required
from peakward.diagnose.examine import examine
from peakward.diagnose.signals import Signals
from peakward.prediction.planning.site import site
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.finding import Diagnosis
from peakward.records.profile import Job, Profile, Rank, WorkPhase
from peakward.report import profile as pages

if TYPE_CHECKING:
    pass


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Show where a trace's time went: PyTorch profiler or Nsight Systems.

    A trace is a file of torch.profiler (.json, .json.gz) or an export of Nsight Systems (.sqlite),
    of any model. Several files are ranks of one job: they are compared on one page, and --kernels, --html
    and --markdown give each rank's own report too.
    """

    files: Annotated[tuple[str, ...], tyro.conf.Positional, required("FILE…")]
    """The traces."""
    kernels: bool = False
    """Everything that the trace tells, in the terminal too: all kernels by phase, copies, waits."""
    phase: Annotated[str | None, option("PHASE", "all")] = None
    """Only the GPU work of forward, backward, optimizer or other."""
    range: Annotated[str | None, option("NAME", "all")] = None
    """Only the GPU work launched inside ranges of this name (record_function, NVTX)."""
    device: Annotated[str | None, option("NAME", "what the trace says")] = None
    """The model of its GPUs (`peakward devices`), where the trace does not say it or means several."""
    views: Views = ViewOptions()


def main(options: Options, _command: str) -> int:
    """Read, analyse, print."""
    if not options.files:
        raise PeakwardError("expected a trace, got none: name a .json, .json.gz or .sqlite file")
    phase = _phase(options.phase)
    targets = output.targets(options.views)
    from peakward.trace_files import trace
    from peakward.traces.trace import compare, in_order

    traces = in_order([trace(name, device=options.device) for name in options.files])
    found = [each.profile(phase=phase, range_name=options.range) for each in traces]
    job = compare(traces) if len(traces) > 1 else None
    told = [
        # The rest of the trace would look idle to the rules.
        None
        if profile.selection is not None
        else diagnosed(profile, each.device, job, None if job is None else job.ranks[at])
        for at, (each, profile) in enumerate(zip(traces, found, strict=True))
    ]
    diagnoses = [each for each in told if each is not None]
    both = list(zip(found, told, strict=True))
    if job is None:
        whole, screen = pages.whole(*both[0]), pages.summary(*both[0])
    else:
        whole = pages.whole_job(job, [pages.whole(*each) for each in both], diagnoses)
        screen = pages.job(job, diagnoses)
    records = [*(() if job is None else (job,)), *found, *diagnoses]
    output.show(
        records,
        targets,
        as_json=options.views.json,
        document=whole,
        screen=whole if options.kernels else screen,
    )
    return 0


def diagnosed(
    found: Profile, device: Device | None, job: Job | None = None, rank: Rank | None = None
) -> Diagnosis:
    """What the rules say of a whole trace, by itself or as one rank of a job."""
    here = None if device is None else site(device)
    return examine(Signals(subject=found.source, profile=found, site=here, job=job, rank=rank))


def _phase(given: str | None) -> WorkPhase | None:
    known: tuple[WorkPhase, ...] = get_args(WorkPhase)
    if given is not None:
        values.one_of(given, known, "a phase")
    return next((phase for phase in known if phase == given), None)
