"""The loop waits for its data

Sees: the time in the loader's `next` of a live loop on a CPU, over all its unprofiled steps.
Costs: nothing runs until the batch is there. Waits that come in bursts, as with several workers, count
by their mean.
Example: `for batch in watch.batches(loader):` over a dataset that decodes or tokenises as it is read.
Lever: none; the program itself must use workers and prefetching, or prepare the data once.
Wrong when: the loader's `next` is where the program does its computing.
"""

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.diagnose.time_parts import WAITING, WAITING_IN_PAUSES, WATCHED

CODE = "LOOP001"


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the loop's clock. On a GPU the idle cause says what the wait cost (HOST001)."""
    loop, time = given.watched, given.time
    if loop is None or time is None:
        return abstain(CODE, WATCHED)
    if loop.waited_s is None:
        return abstain(CODE, "batches drawn through watch.batches")
    if given.gpu is not None:
        return abstain(CODE, "a loop without GPU work; HOST001 judges the waits of a loop with it")
    parts = {name: time.parts[name] for name in (WAITING, WAITING_IN_PAUSES)}
    if time.share(parts) < WORTH_SHARE:
        return None
    return Symptom(
        cause="The loop waits for its loader to return the next batch.",
        evidence=(
            number("time waiting for data", loop.waited_s, "s", "loop waited_s"),
            number("unprofiled steps", loop.n_steps, "count", "loop n_steps"),
            number("time of all unprofiled steps", loop.total_s, "s", "loop total_s"),
        ),
        advice="give the loader workers and prefetching, and prepare what it reads once, before training",
        parts=parts,
    )
