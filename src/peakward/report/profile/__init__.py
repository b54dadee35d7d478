"""The report of a trace, or of several traces as ranks of one job."""

from peakward.report.profile.page import document, screen

__all__ = ["document", "screen"]
