"""Show where a trace's time went: PyTorch profiler or Nsight Systems."""

from typing import Annotated, get_args

import msgspec
import tyro

from peakward.cli import output
from peakward.cli.vocabulary import ViewOptions, Views, option, required
from peakward.records import check
from peakward.records.errors import PeakwardError
from peakward.records.profile import WorkPhase
from peakward.report import profile as pages


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Show where a trace's time went: PyTorch profiler or Nsight Systems.

    A trace is a file of torch.profiler (.json, .json.gz) or an export of Nsight Systems (.sqlite),
    of any model. Several files are taken as ranks of one job and compared as well; a file that
    cannot be is left out, and said.
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
    from peakward.api.traces import ranks, report

    read = ranks(options.files, device=options.device)
    found = report(read.traces, phase=phase, range_name=options.range, notes=read.notes)
    whole = pages.document(found)
    screen = whole if options.kernels else pages.screen(found)
    output.show(found, targets, as_json=options.views.json, document=whole, screen=screen)
    return 0


def _phase(given: str | None) -> WorkPhase | None:
    known: tuple[WorkPhase, ...] = get_args(WorkPhase)
    if given is not None:
        check.one_of(given, known, "a phase")
    return next((phase for phase in known if phase == given), None)
