"""The allocator goes back to the driver in every step

Sees: at least one cudaMalloc or cudaFree (or HIP's) for each profiled step.
Costs: a cudaFree waits for the whole device; a steady step of a caching allocator needs neither call.
Example: `torch.cuda.empty_cache()` in the loop; changing shapes that cached blocks do not fit; memory
so full that every step frees and retries.
Lever: none; use expandable segments, fixed shapes, or less memory per step.
Wrong when: the profile holds only first steps, which allocate the memory that later steps keep.
"""

import re

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number

CODE = "MEM003"
TO_DRIVER = re.compile(r"(?:cuda|hip)(?:Malloc|Free)$|cuMem(?:Alloc|Free|Create|Release)")
LEAST_PER_STEP = 1
"""A caching allocator that has seen its shapes needs no call."""
LEAST_SHARE = 0.01
"""The smallest share of the time. It is lower than that of other rules, because the time of the calls
leaves out the waiting of the device that follows."""
CAUSES = ("host_bound", "after_synchronisation", "synchronisation")


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the host's calls."""
    host, time, steps = given.host, given.time, given.steps
    if time is None or given.idle is None:
        return abstain(CODE, "a profile of GPU work")
    if host is None or steps is None:
        return abstain(CODE, "marked steps and the host's calls in the profile")
    calls = [each for each in host.calls if TO_DRIVER.match(each.name)]
    n, took_s = sum(each.n for each in calls), sum(each.sum_ns for each in calls) * 1e-9 / steps
    idle = time.idle(*CAUSES)
    idle_s = sum(idle.values())
    held = {
        name: seconds * min(took_s / idle_s, 1.0) if idle_s else 0.0
        for name, seconds in idle.items()
    }
    if n < LEAST_PER_STEP * steps or time.share(held) < LEAST_SHARE:
        return None
    return Symptom(
        cause="Memory is given back to the driver and asked for again in each step.",
        evidence=tuple(
            number(
                f"{each.name}, calls a step",
                each.n / steps,
                "count",
                f"profile host.calls[{each.name}].n",
            )
            for each in calls
        ),
        advice="no empty_cache() in the loop; fixed shapes; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; else a smaller step",
        parts=held,
    )
