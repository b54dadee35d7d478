"""The report of a plan."""

from peakward.report.plan.page import summary, whole

__all__ = ["summary", "whole"]
