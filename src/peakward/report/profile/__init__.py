"""The report of a trace."""

from peakward.report.profile.page import job, summary, whole

__all__ = ["job", "summary", "whole"]
