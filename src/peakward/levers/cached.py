"""What the passes with a key-value cache cannot be combined with."""

from peakward.records.case import ModelCase


def cache_obstacle(case: ModelCase) -> str | None:
    """Why the case's workload or settings do not go with a cache, or None. Other passes have none."""
    work = case.workload
    if not work.caches:
        return None
    if work.accumulate != 1:
        return f"accumulate {work.accumulate} needs a pass that trains, got {work.pass_}"
    if work.varying_seq_lens:
        return f"varying lengths need a pass without a key-value cache, got {work.pass_}"
    if case.configuration.checkpointing != "none":
        return (
            f"checkpointing {case.configuration.checkpointing} needs a pass that trains, "
            f"got {work.pass_}"
        )
    return None
