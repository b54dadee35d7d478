"""Python's garbage collector stops the loop

Sees: the time of all collections in a live loop's unprofiled steps, automatic ones included, from the
interpreter's own callbacks. On a GPU it counts at most the time in which the GPU was idle before a
launch.
Costs: a full collection walks every object of the process, and every thread of Python waits.
Example: `gc.collect()` in each step, or millions of small objects that automatic collections walk.
Lever: none; call `gc.freeze()` after building the model, or `gc.disable()` and collect from time to
time.
Wrong when: the collections ran while the GPU had work queued; at most their own time is counted.
"""

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.diagnose.time_parts import COLLECTING, COLLECTING_IN_PAUSES, WATCHED, TimeParts
from peakward.records.loop import LoopTimes

CODE = "LOOP002"
CAUSES = ("host_bound", "after_synchronisation")


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the interpreter's callbacks."""
    loop, time = given.watched, given.time
    if loop is None or time is None:
        return abstain(CODE, WATCHED)
    if given.gpu is None:
        parts = {name: time.parts[name] for name in (COLLECTING, COLLECTING_IN_PAUSES)}
    else:
        parts = _idle(loop, time)
    if time.share(parts) < WORTH_SHARE:
        return None
    return Symptom(
        cause="The loop waits while Python's garbage collector searches for unused objects.",
        evidence=(
            number("garbage collections", loop.n_collections, "count", "loop n_collections"),
            number("time of garbage collections", loop.collected_s, "s", "loop collected_s"),
            number(
                "longest garbage collection",
                loop.longest_collection_s,
                "s",
                "loop longest_collection_s",
            ),
            number("time of all unprofiled steps", loop.total_s, "s", "loop total_s"),
        ),
        advice="call gc.collect() seldom and between epochs; gc.freeze() after building the model, and "
        "a higher gc.set_threshold(), make automatic collections rarer and shorter",
        parts=parts,
    )


def _idle(loop: LoopTimes, time: TimeParts) -> dict[str, float]:
    """The idle time of a GPU in a typical step, at most as much as a step's collections took."""
    idle = time.idle(*CAUSES)
    idle_s = sum(idle.values())
    collected_s = (loop.collected_s - loop.pauses.collected_s) / loop.n_steps
    share = min(collected_s / idle_s, 1.0) if idle_s else 0.0
    return {name: seconds * share for name, seconds in idle.items()}
