"""What a share of the roof over 100% may come of."""

from collections.abc import Iterator, Sequence

from peakward.hardware import devices
from peakward.report.format import format_cell
from peakward.studies.roofline.cells import Cell, profiled
from peakward.studies.roofline.places import Place
from peakward.studies.setting import Setting


def causes(cells: Sequence[Cell], setting: Setting) -> Iterator[str]:
    """A note for each cause that some place has, naming the kinds."""
    where = setting.environment
    device = devices.match(where.device_name, where.device_memory_bytes)
    l2_bytes = None
    if device is not None and device.l2_bytes is not None:
        l2_bytes = device.l2_bytes.value
    above = [
        each for cell in profiled(cells) for each in cell.places if (each.roof_share or 0.0) > 1
    ]
    kinds: dict[str, dict[str, None]] = {}
    for each in above:
        kinds.setdefault(_cause(each, l2_bytes), {})[each.kind] = None
    for cause, names in kinds.items():
        yield f"A share over 100% ({', '.join(names)}): {cause}."


def _cause(place: Place, l2_bytes: float | None) -> str:
    if place.bound == "compute":
        return "products ran faster than the square one of the calibration"
    if l2_bytes is None:
        return "memory's bandwidth does not bound what is found in a cache, whose size is not known"
    if place.bytes > l2_bytes * place.n_calls:
        return "what a call moves is more than the L2 holds; the cause is not known"
    return (
        f"what a call moves fits into the L2 of {format_cell(l2_bytes, 'bytes')}, where it may be "
        "found; memory's bandwidth does not bound that"
    )
