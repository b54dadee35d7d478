"""The report of `peakward run`."""

from peakward.report.run.page import document, headline

__all__ = ["document", "headline"]
