"""The report of an allocator snapshot."""

from peakward.report.memory.page import summary, whole

__all__ = ["summary", "whole"]
