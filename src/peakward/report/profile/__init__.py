"""The report of a trace."""

from peakward.report.profile.page import job, summary, whole, whole_job

__all__ = ["job", "summary", "whole", "whole_job"]
