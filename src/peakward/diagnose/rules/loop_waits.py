"""The loop waits for its data

Sees: the time in the loader's `next` of a live loop on a CPU, over all its unprofiled steps.
Costs: nothing runs until the batch is there; waits in bursts, as with several workers, count by their mean.
Example: `for batch in watch.batches(loader):` over a dataset that decodes or tokenises as it is read.
Lever: none; workers, prefetching, and preparing the data once are the program's own.
Wrong when: the loader's `next` is where the program does its computing.
"""

from peakward.diagnose.loop_parts import WAITING, WAITING_IN_PAUSES, WATCHED
from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import WORTH_SHARE, Symptom, Verdict, abstain, number

CODE = "LOOP001"


def judge(signals: Signals) -> Verdict:
    """By the loop's clock; on a GPU the idle cause says what the wait cost (HOST001)."""
    loop, time = signals.watched, signals.time
    if loop is None or time is None:
        return abstain(CODE, WATCHED)
    if loop.waited_s is None:
        return abstain(CODE, "batches drawn through watch.batches")
    if signals.gpu is not None:
        return abstain(CODE, "a loop without GPU work, of which HOST001 judges the waits")
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
