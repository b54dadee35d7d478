"""The program runs Python's garbage collector in its steps

Sees: calls of `gc.collect` that a trace with Python stacks recorded, while the GPU had idle time.
Costs: a full collection walks every object of the process while nothing is launched.
Example: `gc.collect()` after each step, to fight a memory leak.
Lever: none; collect between epochs, or call `gc.freeze()` after building the model.
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

CODE = "HOST006"
CAUSES = ("host_bound", "after_synchronisation")


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the calls. Collections that Python starts by itself leave no mark in a trace and are
    not judged."""
    host, time, gpu = given.host, given.time, given.gpu
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    if host is None or not host.n_python:
        return abstain(CODE, "Python stacks in the profile")
    if host.collections is None:
        return abstain(CODE, "a mark of automatic collections, which traces do not have")
    idle = time.idle(*CAUSES)
    collected_s = host.collections.sum_ns * 1e-9 / (given.steps or 1)
    idle_s = sum(idle.values())
    share = min(collected_s / idle_s, 1.0) if idle_s else 0.0
    held = {name: seconds * share for name, seconds in idle.items()}
    if time.share(held) < WORTH_SHARE:
        return None
    return Symptom(
        cause="The host walks all Python objects in a step while the GPU has nothing to do.",
        evidence=(
            number(
                "calls of gc.collect", host.collections.n, "count", "profile host.collections.n"
            ),
            number(
                "time in them",
                host.collections.sum_ns * 1e-9,
                "s",
                "profile host.collections.sum_ns",
            ),
        ),
        advice="collect seldom and between epochs; gc.freeze() after building the model",
        parts=held,
    )
