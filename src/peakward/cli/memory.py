"""Show what held a GPU's memory: allocator snapshots of torch."""

from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from peakward.cli import output
from peakward.cli.vocabulary import ViewOptions, Views, required
from peakward.records.errors import PeakwardError
from peakward.report import memory as pages


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Show what held a GPU's memory: allocator snapshots of torch.

    A snapshot is what torch.cuda.memory._dump_snapshot writes, gzipped or not, or a pickle of
    torch.cuda.memory._snapshot(). No code in it is run, and torch is not needed.
    """

    file: Annotated[str | None, tyro.conf.Positional, required("SNAPSHOT")] = None
    """The snapshot."""
    all: bool = False
    """Everything that the snapshot tells, in the terminal too: timeline, segments, all stacks."""
    views: Views = ViewOptions()


def main(options: Options, _command: str) -> int:
    """Read, work out, print."""
    if options.file is None:
        raise PeakwardError(
            "expected a snapshot, got none: name a file that torch.cuda.memory._dump_snapshot wrote"
        )
    targets = output.targets(options.views)
    from peakward.traces.memory.memory import memory

    found = memory(Path(options.file)).report()
    whole = pages.whole(found)
    output.show(
        found,
        targets,
        as_json=options.views.json,
        document=whole,
        screen=whole if options.all else pages.summary(found),
    )
    return 0
