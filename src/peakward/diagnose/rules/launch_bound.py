"""The host launches work too slowly: launch-bound

Sees: idle time whose causes are host-bound and launch latency, where the host was in the framework's
operators and the driver's calls, and how many pieces of work a step launches. The rule does not apply
where one call that launches nothing, such as `cudaHostAlloc`, takes most of that time.
Costs: every operator takes microseconds of the host, whatever its size; small kernels end sooner.
Example: a small model of batch 1 in eager mode: 60 kernels of 5 µs in 3.9 ms (BERT on an H100).
Lever: compile makes fewer kernels; cuda-graphs makes one launch a step; a larger batch makes kernels
longer.
Wrong when: the profile was taken with Python stacks, which slow the host several times, and no step was
measured without them.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.kernels import dispatch_parts

CODE = "HOST002"
LEAST_SHARE = 0.1
"""Every step has some gaps that the host causes: at its start, at its end, and in the optimiser's
bookkeeping."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the idle causes `host_bound` and `launch_latency`, less the time in the program's
    Python."""
    found, gpu = dispatch_parts(given), given.gpu
    if found is None or gpu is None or given.time is None:
        return abstain(CODE, "a profile of GPU work")
    if given.time.share(found.operators) < LEAST_SHARE:
        return None
    together, steps = gpu.breakdown.together, given.steps
    n_work = together.n_compute + together.n_communication + together.n_copies + together.n_sets
    each = "a step" if steps else "in all"
    return Symptom(
        cause="Kernels end before the host has launched the next: the GPU waits for dispatch, not for "
        "arithmetic.",
        evidence=(
            number(
                "idle, host-bound and launch latency, profiled",
                found.seen_ns * 1e-9,
                "s",
                "profile idle.together.by_cause_ns.host_bound + launch_latency",
            ),
            number(
                f"pieces of work {each}",
                n_work / (steps or 1),
                "count",
                "profile breakdown.together.n_compute + n_communication + n_copies + n_sets",
            ),
            number(
                "mean time of one",
                together.busy_ns * 1e-9 / max(n_work, 1),
                "s",
                "profile breakdown.together.busy_ns",
            ),
        ),
        advice="make fewer and longer kernels: compile, capture the step as a graph, or a larger batch",
        levers=("compile", "cuda-graphs"),
        parts=found.operators,
    )
