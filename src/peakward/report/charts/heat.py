"""Rows of cells whose shade is their value: many small numbers at a glance, whose figures stand elsewhere."""

from collections import defaultdict
from xml.etree import ElementTree as ET

from peakward.records.study import Plot
from peakward.report.charts.canvas import LINE, canvas, text, width_of
from peakward.report.format import format_cell
from peakward.report.plots import NO_VALUE, columns, shade, shaded

CELL, WIDEST, GAP = 13, 44, 1
"""The height of a cell, its largest width, and what is left between two."""
SHADES = 8


def draw_heat(plot: Plot, width: float) -> ET.Element:
    """A `heat` plot. All cells of a shade are one path: a page with hundreds of cells stays small."""
    xs = columns(plot)
    names = max(width_of(each.name) for each in plot.series)
    beside = names + 10 < width * 0.5
    left, pitch = (names + 10, CELL) if beside else (0.0, CELL + LINE)
    across = min(WIDEST, (width - left) / len(xs))
    missing = any(len(each.points) < len(xs) for each in plot.series)
    height = len(plot.series) * pitch + (5 if missing else 4) * LINE
    root = canvas(width, height, plot.title, _describe(plot))
    cells: dict[int, list[str]] = defaultdict(list)
    crosses = []
    for row, each in enumerate(plot.series):
        top = row * pitch + (0 if beside else LINE)
        if beside:
            text(root, left - 10, top + CELL - 3, each.name, anchor="end")
        else:
            text(root, 0, top - 3, each.name)
        values = {point.x: point.y for point in each.points}
        for at, (x, _) in enumerate(xs):
            corner = f"M{left + at * across:.0f} {top}"
            if x in values:
                side = f"{corner}h{across - GAP:.0f}v{CELL - GAP}h-{across - GAP:.0f}z"
                cells[shade(plot, values[x], SHADES)].append(side)
            else:
                crosses.append(corner + _cross(across))
    for level, sides in sorted(cells.items()):
        _fill(root, level, "".join(sides))
    if missing:
        ET.SubElement(root, "path", {"d": "".join(crosses), "class": "missing"})
        text(root, left, height - LINE + 10, f"{NO_VALUE} no value")
    _name_columns(root, plot, left, across, len(plot.series) * pitch + LINE - 2)
    _legend(root, plot, left, len(plot.series) * pitch + 3 * LINE)
    return root


def _cross(across: float) -> str:
    """A cross in the middle of a cell, from the cell's corner on."""
    size = min(CELL - GAP, across - GAP) / 2
    right, down = (across - GAP - size) / 2, (CELL - GAP - size) / 2
    return f"m{right:.1f} {down:.1f}l{size:.1f} {size:.1f}m0 -{size:.1f}l-{size:.1f} {size:.1f}"


def _fill(root: ET.Element, level: int, sides: str) -> None:
    given = {"d": sides, "class": "cell", "fill-opacity": f"{max(level / SHADES, 0.06):.2g}"}
    ET.SubElement(root, "path", given)


def _name_columns(root: ET.Element, plot: Plot, left: float, across: float, y: float) -> None:
    """The labels of columns that have room, and what they are."""
    end = left - 1.0
    for at, (_, label) in enumerate(columns(plot)):
        middle = left + (at + 0.5) * across
        if middle - width_of(label) / 2 > end:
            text(root, middle, y, label, anchor="middle", style="tick")
            end = middle + width_of(label) / 2 + 4
    text(root, left, y + LINE, plot.x_label, style="axis")


def _legend(root: ET.Element, plot: Plot, left: float, y: float) -> None:
    low, high = (format_cell(each, plot.y_unit) for each in shaded(plot))
    lightest = f"{plot.y_label} {low}"
    needed = width_of(lightest) + width_of(high) + SHADES * CELL + 12
    left = max(0.0, min(left, float(root.get("width", 0)) - needed))
    text(root, left, y + 10, lightest)
    x = left + width_of(lightest) + 6
    for level in range(1, SHADES + 1):
        corner = f"M{x + (level - 1) * CELL:.0f} {y}h{CELL - GAP}v{CELL - GAP}h-{CELL - GAP}z"
        _fill(root, level, corner)
    text(root, x + SHADES * CELL + 6, y + 10, high)


def _describe(plot: Plot) -> str:
    """For readers who cannot see the drawing: each row's largest value and where it is, and in how many cells
    there is none."""
    parts = []
    names = dict(columns(plot))
    for each in plot.series:
        if each.points:
            most = max(each.points, key=lambda point: point.y)
            parts.append(f"{each.name}: most {format_cell(most.y, plot.y_unit)} at {names[most.x]}")
        if n_missing := len(names) - len(each.points):
            parts.append(f"{each.name}: no value in {n_missing} of {len(names)} cells")
    return f"{plot.y_label} by {plot.x_label}. {'; '.join(parts)}."
