"""The report of `peakward run`."""

from peakward.report.run.page import document

__all__ = ["document"]
