"""Summaries, intervals, steady state and paired comparison: pure functions of numbers."""
