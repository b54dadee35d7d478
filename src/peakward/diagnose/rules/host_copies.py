"""Data crosses between host and GPU in every step

Sees: time in which the GPU only copies from or to the host, at least once a marked step, and whether
the host's memory is pageable.
Costs: the link to the host has a fiftieth of the GPU's bandwidth (H100: 64 GB/s, 3.35 TB/s), and a copy
from pageable memory blocks the host.
Example: a mask that torch builds on the CPU and `.to(device)` moves in every step.
Lever: none; make it on the device, or copy from pinned memory with `non_blocking=True`.
Wrong when: offloading is intended. Copies beside compute are not counted.
"""

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.diagnose.kernels import chosen, parts

CODE = "HOST005"
DIRECTIONS = ("host_to_device", "device_to_host")
NAMES = ("Memcpy HtoD", "Memcpy DtoH", "CopyHostToDevice", "CopyDeviceToHost")
"""The names of copies across the link: CUPTI's, with the kinds of both memories, and ROCm's."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the copies' own rows, and by the copying time in which nothing else ran."""
    gpu, time = given.gpu, given.time
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    crossing = [each for each in gpu.transfers if each.what in DIRECTIONS]
    n = sum(each.n for each in crossing)
    if n and given.steps is None:
        return abstain(CODE, "marked steps in the profile")
    if n < (given.steps or 1):
        return None
    rows = chosen(gpu, lambda each: each.name.startswith(NAMES))
    if not rows:
        return abstain(CODE, "names of copies that tell their direction")
    held = parts(time, rows)
    if time.share(held) < WORTH_SHARE:
        return None
    pageable = sum(each.n for each in rows if "Pageable" in each.name)
    evidence = [
        number(
            f"{each.what.replace('_', ' ')}, copies",
            each.n,
            "count",
            f"profile transfers[{each.what}].n",
        )
        for each in crossing
    ]
    evidence += [
        number(
            f"{each.what.replace('_', ' ')}",
            each.n_bytes,
            "bytes",
            f"profile transfers[{each.what}].n_bytes",
        )
        for each in crossing
    ]
    evidence.append(
        number(
            "from or to pageable memory, copies", pageable, "count", "profile kernels[*Pageable*].n"
        )
    )
    return Symptom(
        cause="Tensors are copied over the host's link in each step while nothing else runs.",
        evidence=tuple(evidence),
        advice="create them on the GPU, or keep them there; pin what must cross, and copy it non-blocking",
        parts=held,
    )
