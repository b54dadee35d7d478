"""Decoding reads all weights for every token: bandwidth-bound

Sees: a decode step that takes at most twice the least time for reading weights and cache.
Costs: every weight is read once to compute one token a sequence, far below the ridge of the roofline.
Example: batch 1 in bf16 on any GPU.
Lever: weights in 4 or 8 bits, or in bf16, are fewer bytes to read, and so is a cache of a byte an element;
flash-decode reads the cache well. Beyond the levers: speculative decoding, a larger batch.
Wrong when: latency is already as low as it must be.
"""

from peakward.diagnose.diagnosis_input import (
    DiagnosisInput,
    Symptom,
    Verdict,
    absent,
    abstain,
    number,
)
from peakward.diagnose.kernels import all_work
from peakward.prediction.floor import floor

CODE = "GEN002"
NEAR = 0.5
"""The share of the floor's rate from which on the amount of data takes the time, and not how it is
read."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the measured step and the floor."""
    case, here, step_s = given.configured, given.site, given.step_s
    if case is not None and case.workload.pass_ != "decode":
        return None
    if case is None or step_s is None:
        return abstain(CODE, *absent(case=case, measurement=step_s))
    if given.case is None or here is None:
        return abstain(CODE, "the model's sizes on a catalogued device")
    (least,) = floor(given.case, calibration=here.calibration, device=here.device).phases
    if least.bound is None:
        return abstain(CODE, "the device's rate in the case's type")
    share = least.memory_s / step_s
    if least.bound != "memory" or share < NEAR:
        return None
    work = {} if given.time is None else all_work(given.time)
    return Symptom(
        cause=f"Weights and cache are read once for each token, at full bandwidth {share:.0%} of the step.",
        evidence=(
            number("step", step_s, "s", "measurement summary.median_s"),
            number("least time for reading them", least.memory_s, "s", "floor phases[0].memory_s"),
            number("bytes of them", least.bytes, "bytes", "floor phases[0].bytes"),
        ),
        advice="quantise weights and cache, decode speculatively, or serve more sequences at once",
        levers=(
            *("int4-weights", "int8-weights", "int8-cache", "fp8-cache"),
            *("bf16", "flash-decode", "sdpa"),
        ),
        parts={name: seconds * min(share, 1.0) for name, seconds in work.items()},
        share=None if work else min(share, 1.0),
    )
