"""Plots drawn as SVG for the HTML page."""

from peakward.report.charts.draw import draw

__all__ = ["draw"]
