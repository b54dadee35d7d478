"""`pw.trace`: a trace that is read from a file, on a device that the catalogue knows."""

from dataclasses import replace
from pathlib import Path

from peakward.catalogue import devices
from peakward.records.errors import PeakwardError
from peakward.traces.trace import Trace


def trace(path: str | Path, *, device: str | None = None) -> Trace:
    """Read a trace of torch.profiler or Nsight Systems: `peakward trace`.

    Args:
        device: the model of its GPUs, such as "a100-sxm-40", where the trace does not say it or its name
            means several.

    Raises:
        PeakwardError: it is neither, or damaged; an unknown device, or one that the trace cannot be of.
    """
    given = None if device is None else devices.device(device)
    found = Trace.open(Path(path))
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
        said = (
            f"The device may be {devices.either(meant)}: the name {names} does not say which, so nothing is "
            f"compared with a roof. Name it with `--device {meant[0].key}` or `pw.trace(path, device=…)`."
        )
        found.table = replace(found.table, limits=(*found.table.limits, said))
    return found
