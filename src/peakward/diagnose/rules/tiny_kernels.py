"""Many tiny kernels run back to back, with gaps between them

Sees: idle time whose cause is gaps between queued kernels, and how many pieces of work a step launches.
Costs: a GPU takes about a microsecond from one kernel to the next, even if the host launched both early
or in one graph. Beside kernels of a few microseconds that is a large part of the time.
Example: a small model's step in a CUDA graph on an H200: 515 kernels of 9.8 µs with gaps of 0.77 µs, 7%
of the time; with kernels of 4 µs it would be 16%.
Lever: compile makes fewer and longer kernels; a larger batch makes kernels longer.
Wrong when: the gaps are few and long: a profile does not show everything that holds up a queue.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number

CODE = "HOST008"
CAUSE = "queued"
LEAST_SHARE = 0.1
"""A captured step of ordinary kernels has 7%."""
TINY_S = 10e-6
"""The mean duration of a piece of work below which a gap of a microsecond is a tenth of it."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the idle cause `queued`, where the pieces of work are short."""
    idle, time, gpu = given.idle, given.time, given.gpu
    if idle is None or time is None or gpu is None:
        return abstain(CODE, "a profile of GPU work")
    together, steps = gpu.breakdown.together, given.steps
    n_work = together.n_compute + together.n_communication + together.n_copies + together.n_sets
    mean_s = together.busy_ns * 1e-9 / max(n_work, 1)
    parts = time.idle(CAUSE)
    if time.share(parts) < LEAST_SHARE or mean_s >= TINY_S:
        return None
    each = "a step" if steps else "in all"
    return Symptom(
        cause="Each kernel is short, and the GPU takes a moment to start the next one, though the host "
        "launched it in time.",
        evidence=(
            number(
                "idle, gaps between queued kernels, profiled",
                idle.together.by_cause_ns.get(CAUSE, 0) * 1e-9,
                "s",
                "profile idle.together.by_cause_ns.queued",
            ),
            number(
                f"pieces of work {each}",
                n_work / (steps or 1),
                "count",
                "profile breakdown.together.n_compute + n_communication + n_copies + n_sets",
            ),
            number("mean time of one", mean_s, "s", "profile breakdown.together.busy_ns"),
        ),
        advice="make fewer and longer kernels: compile, or a larger batch; a graph does not close these gaps",
        levers=("compile",),
        parts=parts,
    )
