"""The few numbers of a run that are set in large type."""

from peakward.records.study import Cell, Unit
from peakward.report.document import Figure
from peakward.report.format import format_cell, format_interval
from peakward.report.run.efficiency import efficiency
from peakward.report.run.investigation import Investigation, Point
from peakward.report.run.summary import peak_bytes


def figures(read: Investigation) -> tuple[Figure, ...]:
    """Speed-up, then the best configuration's figures beside the baseline's."""
    before, after = _values(read.baseline), _values(read.points[-1])
    found = [_speedup(read)]
    for name, (value, unit) in after.items():
        old = before[name][0] if read.best else None
        found.append(_figure(name, value, old, unit))
    return tuple(figure for figure in found if figure is not None)


def _values(point: Point) -> dict[str, tuple[Cell, Unit]]:
    known = efficiency(point)
    return {
        "step": (known.step_s, "s"),
        "throughput": (known.tokens_per_s, "tokens_per_s"),
        "MFU": (known.mfu, "share"),
        # Where no datasheet is known, the measured ceiling stands in for it.
        "ceiling share": (known.ceiling_share if known.mfu is None else None, "share"),
        "share of floor": (known.floor_share, "share"),
        "peak memory": (peak_bytes(point.measurement), "bytes"),
    }


def _figure(name: str, value: Cell, old: Cell, unit: Unit) -> Figure | None:
    if value is None:
        return None
    detail = None if old is None else f"baseline {format_cell(old, unit)}"
    return Figure(name=name, value=format_cell(value, unit), detail=detail)


def _speedup(read: Investigation) -> Figure | None:
    speedup = read.speedup
    if speedup is None:
        return None
    value = format_cell(speedup.estimate, "ratio")
    detail = speedup.basis
    if speedup.interval is not None:
        detail = f"{format_interval(speedup.interval, 'ratio')}, {detail}"
    return Figure(name="speed-up", value=value, detail=detail)
