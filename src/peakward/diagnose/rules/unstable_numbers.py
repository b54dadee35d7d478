"""A narrow type made the loss infinite or not a number

Sees: a case with 16-bit or narrower products whose measured loss was not finite.
Costs: the run is lost.
Example: fp16 without a scaled loss: gradients below 6e-8 become 0, sums above 65,504 infinite.
Lever: bf16-mixed for fp16's range; fp32 accumulators and norms, loss scaling.
Wrong when: the same case is not finite in fp32 either: then the learning rate or the data is to blame.
"""

from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import Symptom, Verdict, absent, abstain

CODE = "NUM001"
NARROW = ("bf16-mixed", "fp16-mixed", "bf16", "fp8")
NOT_FINITE = "expected a finite loss"
"""How a measurement's reason begins where its loss was not."""


def judge(signals: Signals) -> Verdict:
    """By the measurement; a finite loss of a few steps says nothing about a long run."""
    how, made = signals.configuration, signals.measurement
    if how is not None and how.precision not in NARROW:
        return None
    if how is None or made is None:
        return abstain(CODE, *absent(case=how, measurement=made))
    if NOT_FINITE not in (made.reason or ""):
        return abstain(CODE, "losses, activations or gradients over a run")
    return Symptom(
        cause=f"In {how.precision}: {made.reason}.",
        evidence=(),
        advice="keep norms, softmax and sums in fp32, scale the loss in fp16, and try the case in fp32",
        levers=("bf16-mixed",),
        share=1.0,
    )
