"""The host stops to wait for the GPU inside the loop

Sees: idle time whose causes are synchronisation (the host is in a call that waits for the GPU) and
host-bound after one, and the calls with the operator and the line around them; of a live step, the lines
at which torch warns of a synchronisation.
Costs: the host cannot launch ahead, so the GPU runs out of work after every wait.
Example: `loss.item()`, `tensor.cpu()`, `print(loss)` or `if mask.any():` in each step.
Lever: none; read scalars every hundred steps, or keep the decision on the GPU.
Wrong when: the wait is the benchmark's own, around each of a few profiled steps.
"""

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.records.case import StepCase
from peakward.records.finding import FindingEvidence
from peakward.records.profile import Waiting

CODE = "HOST004"
CAUSES = ("synchronisation", "after_synchronisation")
N_PLACES = 3


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the idle causes of synchronisation. The recorded waits say where they come from."""
    idle, time, gpu = given.idle, given.time, given.gpu
    if idle is None or time is None or gpu is None:
        return abstain(CODE, "a profile of GPU work")
    parts = time.idle(*CAUSES)
    if time.share(parts) < WORTH_SHARE:
        return None
    seen_ns = sum(idle.together.by_cause_ns.get(cause, 0) for cause in CAUSES)
    return Symptom(
        cause="A call waits until the GPU has done all work before it, and no work is queued behind it.",
        evidence=(
            number(
                "idle, synchronisation and host-bound after it, profiled",
                seen_ns * 1e-9,
                "s",
                "profile idle.together.by_cause_ns.synchronisation + after_synchronisation",
            ),
            *_places(gpu.waits),
        ),
        advice="defer .item(), .cpu() and printing to every so many steps; keep conditions on the GPU"
        + _lines(given),
        parts=parts,
    )


def _lines(given: DiagnosisInput) -> str:
    """The lines of a live step that wait, which a profile without stacks cannot name."""
    case = None if given.measurement is None else given.measurement.case
    if not isinstance(case, StepCase) or not case.waits:
        return ""
    return f": here {'; '.join(f'`{each}`' for each in case.waits[:N_PLACES])}"


def _places(waits: tuple[Waiting, ...]) -> tuple[FindingEvidence, ...]:
    """The waits that left the GPU idle longest; the idle time after a wait is not counted."""
    worst = sorted(enumerate(waits), key=lambda each: -each[1].gpu_idle_ns)
    return tuple(
        number(
            f"{each.operator or each.call} at {each.python or each.range or 'an unknown place'}, calls",
            each.n,
            "count",
            f"profile waits[{at}].n",
        )
        for at, each in worst[:N_PLACES]
    )
