"""Plots drawn as SVG text for the HTML page."""

from xml.etree import ElementTree as ET

from peakward.records.study import Plot
from peakward.report.charts.bars import draw_bars
from peakward.report.charts.heat import draw_heat
from peakward.report.charts.lines import draw_lines, draw_roofline


def draw(plot: Plot, width: float) -> str:
    """The plot as an `<svg>` element `width` pixels wide; every name in it is escaped."""
    match plot.kind:
        case "lines":
            root = draw_lines(plot, width)
        case "bars":
            root = draw_bars(plot, width)
        case "roofline":
            root = draw_roofline(plot, width)
        case "heat":
            root = draw_heat(plot, width)
    return ET.tostring(root, encoding="unicode")
