"""How near an operator came to its device's roofline: the minimum time for its work over its kernels'
time."""

import re
from collections.abc import Collection

from peakward.records.device import Device

_COMPUTE_TYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
}
_ON_CUDA_CORES = re.compile(r"ffma|simt|sgemm")
_IN_TF32 = re.compile(r"tf32|s1688|tensorop")


def compute_type(dtype: str | None, kernels: Collection[str]) -> str | None:
    """The compute type of an operator's matmuls; None where names do not tell.

    fp32 operands may be multiplied in fp32 or, if the program allows it, in tf32 at some seven times the
    rate. Only the kernels' names tell which.
    """
    if dtype != "float":
        return _COMPUTE_TYPES.get(dtype or "")
    if any(_IN_TF32.search(name) for name in kernels):
        return "tf32"
    return "fp32" if any(_ON_CUDA_CORES.search(name) for name in kernels) else None


def roof_share(
    device: Device, in_type: str | None, *, flops: int | None, n_bytes: int | None, time_s: float
) -> float | None:
    """The roofline's time for these FLOPs and bytes over the measured time (Williams et al. 2009).

    None where the FLOPs' type has no known peak, or nothing is known. It is above 1 where tensors stayed in a
    cache, because the bytes are then an overestimate.
    """
    least_s = 0.0
    if flops is not None:
        peak = device.peak_flops_per_s.get(in_type or "")
        if peak is None:
            return None
        least_s = flops / peak.value
    if n_bytes is not None:
        least_s = max(least_s, n_bytes / device.bytes_per_s.value)
    return least_s / time_s if 0 < least_s <= time_s else None
