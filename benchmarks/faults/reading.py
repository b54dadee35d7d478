"""What a trace file alone lets the rules see. Needs no torch."""

from pathlib import Path

from faults.records import Seen
from peakward.hardware import devices
from peakward.traces.trace import Trace


def of_trace(path: Path) -> Seen:
    """As `peakward trace` reads it."""
    trace = Trace.open(path)
    on = devices.match_all((each.name, each.memory_bytes) for each in trace.table.devices)
    profile = trace.profile(device=on)
    return Seen(profile=profile, n_steps=profile.n_steps, device=None if on is None else on.key)
