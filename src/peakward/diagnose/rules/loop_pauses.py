"""Some steps take several times as long as the others

Sees: steps of a live loop that took at least three times the median, and their time beyond the median;
how much of that the loop waited for data, and how much Python's garbage collector took.
Costs: the mean step is longer than the typical one; with several ranks all of them wait.
Example: a checkpoint written in the loop every fifty steps, an evaluation, a recompilation, a loader's
epoch.
Lever: none; write checkpoints beside the loop, keep shapes fixed, keep the loader's workers.
Wrong when: the pause is intended work, such as an evaluation; or the machine is shared with others.
"""

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.diagnose.time_parts import (
    COLLECTING_IN_PAUSES,
    PAUSING,
    WAITING_IN_PAUSES,
    WATCHED,
    host_runs_ahead,
)

CODE = "LOOP003"
LEAST = 2
"""One long step may have any cause."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the host's clock, where the host does not run ahead of the device."""
    loop, time, gpu = given.watched, given.time, given.gpu
    if loop is None or time is None:
        return abstain(CODE, WATCHED)
    if gpu is not None and host_runs_ahead(gpu, n_steps=given.steps, loop=loop):
        return abstain(CODE, "steps that the host's clock can tell: it runs ahead of the GPU")
    parts = {name: time.parts[name] for name in (WAITING_IN_PAUSES, COLLECTING_IN_PAUSES, PAUSING)}
    pauses = loop.pauses
    if pauses.n < LEAST or time.share(parts) < WORTH_SHARE:
        return None
    return Symptom(
        cause=_cause(waited=pauses.waited_s, collected=pauses.collected_s, all_s=pauses.beyond_s),
        evidence=(
            number("long steps", pauses.n, "count", "loop pauses.n"),
            number("unprofiled steps in all", loop.n_steps, "count", "loop n_steps"),
            number(
                "time of long steps beyond the median", pauses.beyond_s, "s", "loop pauses.beyond_s"
            ),
            number("waiting for data in long steps", pauses.waited_s, "s", "loop pauses.waited_s"),
            number(
                "garbage collection in long steps",
                pauses.collected_s,
                "s",
                "loop pauses.collected_s",
            ),
            number("longest step", pauses.longest_s, "s", "loop pauses.longest_s"),
        ),
        advice="look at what the loop does only in these steps: checkpoints, evaluation, logging, new "
        "shapes, the loader's next epoch",
        parts=parts,
    )


def _cause(*, waited: float, collected: float, all_s: float) -> str:
    most = max(waited, collected, all_s - waited - collected)
    if most == waited:
        return "The loop mostly waits for data in the long steps."
    if most == collected:
        return "Python's garbage collector takes most of the additional time of the long steps."
    return "The long steps do work that the others do not; most of it is neither waiting nor collecting."
