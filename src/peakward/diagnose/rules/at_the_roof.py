"""One operator dominates, and is near its roof

Sees: operators of one name and shape that their FLOPs bound, with their share of the roofline of the
device's datasheet.
Costs: nothing is lost: the work itself takes the time.
Example: a vocabulary of 128,000 whose product with the hidden states takes most of a small model's
step.
Lever: a type narrower than that of the operands; else only fewer FLOPs help (sparsity, low rank, a
smaller vocabulary).
Wrong when: the operator need not run at all.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.kernels import of_operators
from peakward.records.device import Device
from peakward.records.profile import OperatorRate

CODE = "PREC002"
NEAR = 0.6
"""The share of the datasheet's roof that counts as near: large square products reach some 0.6 to 0.8."""
DOMINATES = 0.3
"""The share of the time from which on one operator dominates."""
EQUAL = 1 - 1e-6
"""Equality up to rounding."""
NARROWER = ("tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp8")
NARROWER_THAN_16_BITS = ("fp8",)
SIXTEEN_BITS = ("c10::BFloat16", "c10::Half")


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the rates of operators whose shapes the trace recorded."""
    gpu, time, device = given.gpu, given.time, given.device
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    known = [each for each in gpu.operators if each.roof_share is not None]
    if not known or device is None:
        return abstain(CODE, "operators' shapes on a catalogued device")
    top = max(known, key=lambda each: each.kernel_ns)
    held = of_operators(time, gpu, (top,))
    if (top.roof_share or 0.0) < NEAR or time.share(held) < DOMINATES:
        return None
    if _is_of_bandwidth(top, device):
        return None
    at = gpu.operators.index(top)
    levers = NARROWER_THAN_16_BITS if top.dtype in SIXTEEN_BITS else NARROWER
    has_narrower = any(map(given.has, levers))
    return Symptom(
        cause=f"{top.name} of {top.dims} runs at the rate that the device can give.",
        evidence=(
            number(
                "share of its roof",
                top.roof_share or 0.0,
                "share",
                f"profile operators[{at}].roof_share",
            ),
            number("its kernels", top.kernel_ns * 1e-9, "s", f"profile operators[{at}].kernel_ns"),
        ),
        advice="fewer FLOPs (sparsity, low rank, smaller sizes)"
        + (" or a narrower type" if has_narrower else "")
        + "; nothing else helps",
        levers=levers,
        parts=held,
        is_limit=True,
    )


def _is_of_bandwidth(each: OperatorRate, device: Device) -> bool:
    """Whether the operator's bytes and not its FLOPs make its roof. Fusing, or a larger batch, would
    then raise the roof."""
    least_s = (each.n_bytes or 0) / device.bytes_per_s.value
    return least_s >= (each.roof_share or 0.0) * each.kernel_ns * 1e-9 * EQUAL
