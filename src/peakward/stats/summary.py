"""The statistics of step times that tables show side by side."""

from collections.abc import Sequence
from statistics import fmean, median, stdev

from peakward.records.measurement import Run, Summary
from peakward.stats.bootstrap import median_interval


def summarise(runs: Sequence[Run]) -> Summary:
    """Summarise the timed steps of one or more processes. A run without timed steps adds nothing.

    For one process, the median and its interval are over its steps. For several they are over the medians of
    the processes: steps of one process share its memory layout and its clocks, so pooled steps would give too
    narrow an interval. Mean, standard deviation, minimum and count are over all steps.

    Raises:
        ValueError: not a single timed step.
    """
    processes = [run.steps_s for run in runs if run.steps_s]
    if not processes:
        raise ValueError("expected at least one timed step, got none")
    steps = [step for process in processes for step in process]
    headline = processes[0] if len(processes) == 1 else [median(process) for process in processes]
    return Summary(
        median_s=median_interval(headline),
        mean_s=fmean(steps),
        sd_s=stdev(steps) if len(steps) > 1 else 0.0,
        min_s=min(steps),
        n=len(steps),
    )
