"""The GPU waits for the next batch

Sees: idle time of the GPU whose cause is data loading: the host waited for its next batch.
Costs: nothing runs until the batch is there; the share of the wait grows with every speed-up of the
rest.
Example: a loader with `num_workers=0` that tokenises text between two steps.
Lever: none; the program itself must use workers, pinned memory and non-blocking copies.
Wrong when: the trace holds only the first batch of an epoch, which starts the workers.
"""

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)

CODE = "HOST001"
CAUSE = "data_loading"


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the idle cause `data_loading`."""
    idle, time = given.idle, given.time
    if idle is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    parts = time.idle(CAUSE)
    if time.share(parts) < WORTH_SHARE:
        return None
    stored = f"profile idle.together.by_cause_ns.{CAUSE}"
    waited_ns = idle.together.by_cause_ns[CAUSE]
    return Symptom(
        cause="The host asks its data loader for a batch that is not ready, with nothing launched ahead.",
        evidence=(number("idle, data loading, profiled", waited_ns * 1e-9, "s", stored),),
        advice="give the loader workers and prefetching, pin its memory, copy with non_blocking=True, "
        "and move tokenising out of the step",
        parts=parts,
    )
