"""Workloads that contradict themselves or their case, whichever levers are at work."""

from peakward.records.case import ModelCase

MOST_WORKERS = 8
"""The studies ask for so many loader workers on any machine; more only where there are as many cores."""


def workload_obstacle(case: ModelCase) -> str | None:
    """Why the case's workload cannot be carried out, or None."""
    return _of_cache(case) or _of_loader(case)


def _of_cache(case: ModelCase) -> str | None:
    work = case.workload
    if not work.caches:
        return None
    if work.accumulate != 1:
        return f"accumulate {work.accumulate} needs a pass that trains, got {work.pass_}"
    if work.varying_seq_lens:
        return f"varying lengths need a pass without a key-value cache, got {work.pass_}"
    return None


def _of_loader(case: ModelCase) -> str | None:
    work, data = case.workload, case.workload.data
    if data is None:
        return None
    if work.caches:
        return f"text from a loader needs a pass without a key-value cache, got {work.pass_}"
    if work.varying_seq_lens:
        return "text from a loader needs sequences of one length, got varying lengths"
    if case.device != "cuda" and (data.pin_memory or data.non_blocking):
        return f"pinned memory and non-blocking copies need a GPU to copy to, got {case.device}"
    return None


def workers_obstacle(n_workers: int, n_cores: int) -> str | None:
    """Why so many loader workers are no sensible number for a machine, or None."""
    most = max(MOST_WORKERS, n_cores)
    if 0 <= n_workers <= most:
        return None
    cores = "1 core" if n_cores == 1 else f"{n_cores} cores"
    return f"expected 0 to {most} loader workers on {cores}, got {n_workers}: each is a process"
