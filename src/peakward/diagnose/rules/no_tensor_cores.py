"""Matrix products run on ordinary cores

Sees: matmul kernels whose names say that they multiply on CUDA cores (sgemm, simt, ffma), on a device
whose datasheet has a tensor-core type at twice the rate or more.
Costs: an H100 has 67 TFLOP/s in fp32 on CUDA cores, 495 in tf32 and 989 in bf16 (datasheet).
Example: an fp32 model with torch's default `torch.backends.cuda.matmul.allow_tf32 = False`.
Lever: tf32, bf16-mixed, fp16-mixed, bf16.
Wrong when: the numbers need fp32's 24 bits; the lever's numerics check says so.
"""

import re

from peakward.diagnose.diagnosis_input import WORTH_SHARE, DiagnosisInput, Symptom, Verdict, abstain
from peakward.diagnose.kernels import chosen, parts, shown
from peakward.records.device import Device

CODE = "PREC001"
ON_CUDA_CORES = re.compile(r"sgemm|simt|ffma")
"""The names of kernels of cuBLAS, CUTLASS and xmma. Every fp32 product of the stored profiles has one
of them."""
BY_LEVER = (
    ("tf32", 'torch.set_float32_matmul_precision("high") for tf32'),
    ("bf16-mixed", "autocast to bf16"),
    ("fp16-mixed", "autocast to fp16 with a scaled loss"),
)
LEAST_RATIO = 2.0
"""The least ratio of a tensor-core type's rate to fp32's at which a device counts as having tensor
cores."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the names of kernels, which their libraries choose."""
    gpu, time, device = given.gpu, given.time, given.device
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    if device is None:
        return abstain(CODE, "the device's rates: it is not catalogued")
    if not _has_tensor_cores(device):
        return None
    groups = chosen(
        gpu,
        lambda each: each.category == "matmul" and bool(ON_CUDA_CORES.search(each.name)),
    )
    held = parts(time, groups)
    if time.share(held) < WORTH_SHARE:
        return None
    return Symptom(
        cause="Operands in fp32 are multiplied in fp32, which no tensor core does.",
        evidence=shown(gpu, groups, given.steps),
        advice=", or ".join(advice for name, advice in BY_LEVER if given.has(name)),
        levers=("tf32", "bf16-mixed", "fp16-mixed", "bf16"),
        parts=held,
    )


def _has_tensor_cores(device: Device) -> bool:
    peaks = {name: each.value for name, each in device.peak_flops_per_s.items()}
    narrow = max(peaks.get(name, 0.0) for name in ("tf32", "fp16", "bf16"))
    return narrow >= LEAST_RATIO * peaks.get("fp32", float("inf"))
