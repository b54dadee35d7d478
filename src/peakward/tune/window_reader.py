"""The process that reads one window of a watched loop: `python -m peakward.tune.window_reader TRACE`.

It takes the loop's times as JSON from stdin and writes a `WatchedWindow` to stdout. Imports no torch.
"""

import os
import sys
from pathlib import Path

from peakward.diagnose.diagnosis_input import DiagnosisInput
from peakward.diagnose.examine import examine
from peakward.hardware import devices
from peakward.prediction.planning.site import site
from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.records.loop import LoopTimes, WatchedWindow
from peakward.traces.trace import Trace

NICENESS = 10
"""The loop, its loader's workers and autograd's threads come first."""


def reading(trace: Path, times: LoopTimes) -> WatchedWindow:
    """The window analysed and examined.

    Raises:
        PeakwardError: the trace cannot be read, or lacks its steps.
    """
    opened = Trace.open(trace)
    device = devices.match_all((each.name, each.memory_bytes) for each in opened.table.devices)
    profile = opened.profile(device=device)
    if profile.n_steps is None:
        raise PeakwardError(f"expected a window with its steps marked, got none in {trace.name}")
    here = None if device is None else site(device)
    return WatchedWindow(
        profile=profile,
        device=None if device is None else device.key,
        diagnosis=examine(
            DiagnosisInput(subject="the watched loop", profile=profile, loop=times, site=here)
        ),
    )


def main(trace: str) -> int:
    """Write the reading, or the reason why there is none to stderr; the exit code."""
    os.nice(NICENESS)
    times = codec.from_json(sys.stdin.buffer.read(), LoopTimes)
    try:
        sys.stdout.buffer.write(codec.to_json(reading(Path(trace), times)))
    except PeakwardError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
