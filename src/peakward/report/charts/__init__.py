"""Plots drawn as SVG, in Python: what the HTML page shows."""

from peakward.report.charts.draw import draw

__all__ = ["draw"]
