"""Show where a trace's time went: PyTorch profiler or Nsight Systems."""

from collections.abc import Sequence
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
from peakward.records.profile import Profile, WorkPhase
from peakward.report import profile as pages
from peakward.report.document import Document

if TYPE_CHECKING:
    from peakward.traces.trace import Trace


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Show where a trace's time went: PyTorch profiler or Nsight Systems.

    A trace is a file of torch.profiler (.json, .json.gz) or an export of Nsight Systems (.sqlite),
    of any model. Several files are taken as ranks of one job and compared as well.
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

    traces = [trace(name, device=options.device) for name in options.files]
    found = [each.profile(phase=phase, range_name=options.range) for each in traces]
    told = [
        # The rest of the trace would look idle to the rules.
        None if profile.selection is not None else diagnosed(profile, each.device)
        for each, profile in zip(traces, found, strict=True)
    ]
    both = list(zip(found, told, strict=True))
    whole = _together([pages.whole(*each) for each in both], traces)
    screen = (
        whole if options.kernels else _together([pages.summary(*each) for each in both], traces)
    )
    records = [*found, *(each for each in told if each is not None)]
    output.show(records, targets, as_json=options.views.json, document=whole, screen=screen)
    return 0


def diagnosed(found: Profile, device: Device | None) -> Diagnosis:
    """What the rules say of a whole trace, by itself."""
    here = None if device is None else site(device)
    return examine(Signals(subject=found.source, profile=found, site=here))


def _phase(given: str | None) -> WorkPhase | None:
    known: tuple[WorkPhase, ...] = get_args(WorkPhase)
    if given is not None:
        values.one_of(given, known, "a phase")
    return next((phase for phase in known if phase == given), None)


def _together(documents: Sequence[Document], traces: "Sequence[Trace]") -> Document:
    """One file's report; or that of a job, with each rank's under it."""
    if len(documents) == 1:
        return documents[0]
    from peakward.traces.trace import compare

    return pages.job(compare(traces), documents)
