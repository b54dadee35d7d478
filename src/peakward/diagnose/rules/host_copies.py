"""Data crosses between host and GPU in every step

Sees: time in which the GPU does nothing but copy from or to the host, once a marked step or more often, and
whether the host's memory is pageable.
Costs: the host's link has a fiftieth of the GPU's bandwidth (H100: 64 GB/s, 3.35 TB/s), and a copy from
pageable memory blocks.
Example: a mask built with torch on the CPU and moved by `.to(device)` in every step.
Lever: none; make it on the device, or copy from pinned memory with `non_blocking=True`.
Wrong when: the copies run beside compute, which is not counted, or offloading is what was wanted.
"""

from peakward.diagnose.kernels import chosen, parts
from peakward.diagnose.signals import Signals
from peakward.diagnose.symptom import WORTH_SHARE, Symptom, Verdict, abstain, number

CODE = "HOST005"
DIRECTIONS = ("host_to_device", "device_to_host")
NAMES = ("Memcpy HtoD", "Memcpy DtoH", "CopyHostToDevice", "CopyDeviceToHost")
"""Of copies across the link: CUPTI's, with the kinds of both memories, and ROCm's."""


def judge(signals: Signals) -> Verdict:
    """By the copies' own rows, and how much of all copying nothing ran beside."""
    gpu, time = signals.gpu, signals.time
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    crossing = [each for each in gpu.transfers if each.what in DIRECTIONS]
    n = sum(each.n for each in crossing)
    if n and signals.steps is None:
        return abstain(CODE, "marked steps in the profile")
    if n < (signals.steps or 1):
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
        advice="create them on the GPU, or keep them there; what must cross, pin and copy non-blocking",
        parts=held,
    )
