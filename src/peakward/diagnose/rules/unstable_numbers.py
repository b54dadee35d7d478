"""A narrow type made the loss infinite or not a number

Sees: a case with 16-bit or narrower products whose measured loss was not finite.
Costs: the run is lost.
Example: fp16 without a scaled loss: gradients below 6e-8 become 0, and sums above 65,504 become
infinite.
Lever: bf16-mixed has a larger range than fp16; fp32 accumulators and norms, or loss scaling, help too.
Wrong when: the same case is not finite in fp32 either: then the learning rate or the data is to blame.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, absent, abstain

CODE = "NUM001"
NARROW = ("bf16-mixed", "fp16-mixed", "bf16", "fp8")
NOT_FINITE = "expected a finite loss"
"""The beginning of a measurement's reason where its loss was not finite."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the measurement. A finite loss of a few steps says nothing about a long run."""
    how, made = given.configuration, given.measurement
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
