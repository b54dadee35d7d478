"""The few numbers of a run in large type."""

from peakward.records.study import Cell, Unit
from peakward.report.document import Figure
from peakward.report.format import format_cell, format_estimate, format_interval
from peakward.report.run.efficiency import efficiency
from peakward.report.run.investigation import Investigation, Point
from peakward.report.run.summary import named_peak, peak_bytes

SHARES_OF_A_RATE = ("MFU", "ceiling share", "share of floor")
"""These shares compare two configurations only in the same compute type: 46% of 67 TFLOP/s in fp32 is less
than 30% of 989 in bf16."""


def figures(read: Investigation) -> tuple[Figure, ...]:
    """The speed-up, then the best configuration's figures beside the baseline's."""
    before, after = _values(read.baseline), _values(read.points[-1])
    found = [_speedup(read)]
    for name, (value, unit) in after.items():
        old = before[name][0] if read.best else None
        if name in SHARES_OF_A_RATE and not _same_compute_type(read):
            detail = named_peak(read.points[-1]) if name == "MFU" else None
            found.append(_figure(name, value, None if detail is None else f"of {detail}", unit))
        else:
            found.append(_figure(name, value, _beside(old, unit), unit))
    return tuple(figure for figure in found if figure is not None)


def _values(point: Point) -> dict[str, tuple[Cell, Unit]]:
    known = efficiency(point)
    return {
        "step": (known.step_s, "s"),
        "throughput": (known.tokens_per_s, "tokens_per_s"),
        "MFU": (known.mfu, "share"),
        # Without a datasheet the measured ceiling takes its place.
        "ceiling share": (known.ceiling_share if known.mfu is None else None, "share"),
        "share of floor": (known.floor_share, "share"),
        "peak memory": (peak_bytes(point.measurement), "bytes"),
    }


def _beside(old: Cell, unit: Unit) -> str | None:
    return None if old is None else f"baseline {format_cell(old, unit)}"


def _same_compute_type(read: Investigation) -> bool:
    return len({each.prediction.compute_type for each in read.points if each.prediction}) < 2


def _figure(name: str, value: Cell, detail: str | None, unit: Unit) -> Figure | None:
    if value is None:
        return None
    return Figure(name=name, value=format_cell(value, unit), detail=detail)


def _speedup(read: Investigation) -> Figure | None:
    speedup = read.speedup
    if speedup is None:
        return None
    value = format_cell(speedup.estimate, "ratio")
    detail = speedup.basis
    if speedup.interval is not None:
        value = format_estimate(speedup.interval, "ratio")
        detail = f"{format_interval(speedup.interval, 'ratio')}, {detail}"
    return Figure(name="speed-up", value=value, detail=detail)
