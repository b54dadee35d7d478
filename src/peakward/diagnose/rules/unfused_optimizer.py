"""The optimiser makes many passes over its state

Sees: elementwise kernels in the optimiser's phase.
Costs: AdamW by formulas moves parameters, gradients and moments through memory once for each formula; a
fused kernel reads and writes them once.
Example: `torch.optim.AdamW(..., foreach=True)`, the default: some ten passes a parameter.
Lever: fused-optimizer, triton-optimizer.
Wrong when: the optimiser of the trace has no fused form.
"""

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.diagnose.kernels import chosen, parts, shown
from peakward.levers.optimizer import OWN

CODE = "BW003"
UNFUSED = ("elementwise", "reduction", "copy")


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the optimiser's phase."""
    profile, time, case = given.profile, given.time, given.configured
    if case is not None and (
        case.workload.pass_ != "train_step" or case.configuration.optimizer in ("adamw-fused", *OWN)
    ):
        return None
    if profile is None or time is None:
        return abstain(CODE, "a profile")
    if not any(each.phase == "optimizer" for each in profile.kernels):
        return abstain(CODE, "work that is known to be the optimiser's")
    groups = chosen(profile, lambda each: each.phase == "optimizer" and each.category in UNFUSED)
    held = parts(time, groups)
    if time.share(held) < WORTH_SHARE:
        return None
    n = sum(each.n for each in groups) / (given.steps or 1)
    return Symptom(
        cause="Each formula of the update is a kernel of its own over all parameters.",
        evidence=(
            number(
                "such kernels a step" if given.steps else "such kernels",
                n,
                "count",
                "profile kernels[optimizer].n",
            ),
            *shown(profile, groups, given.steps),
        ),
        advice="torch.optim.AdamW(..., fused=True), or a fused step of another library",
        levers=("fused-optimizer", "triton-optimizer"),
        parts=held,
    )
