"""Many tiny kernels run back to back, with gaps between them

Sees: idle time whose cause is gaps between queued kernels, and how many pieces of work a step launches; of
decode also short kernels without gaps, where half of the time is more than reading weights and cache takes.
Costs: a GPU takes about a microsecond from one kernel to the next, even if the host launched both early
or in one graph. Beside kernels of a few microseconds that is a large part of the time. Such a kernel ends
before it draws the whole bandwidth, too.
Example: a small model's step in a CUDA graph on an H200: 515 kernels of 9.8 µs with gaps of 0.77 µs, 7%
of the time; with kernels of 4 µs it would be 16%. A fused step of SmolLM2-135M for four texts there: 152
kernels of 4.9 µs, launched to overlap, take ten times what reading takes.
Lever: compile makes fewer and longer kernels, and so does the fused step of decode; a larger batch makes
kernels longer.
Wrong when: the gaps are few and long: a profile does not show everything that holds up a queue.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.kernels import all_work
from peakward.prediction.floor import floor
from peakward.records.finding import FindingEvidence

CODE = "HOST008"
CAUSE = "queued"
LEAST_SHARE = 0.1
"""A captured step of ordinary kernels has 7%."""
TINY_S = 10e-6
"""The mean duration of a piece of work below which a gap of a microsecond is a tenth of it."""
LEAST_BEYOND = 0.5
"""The least share of a decode step that short kernels take beyond reading."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the idle cause `queued` and by the floor of a decode step, where kernels are short."""
    idle, time, gpu = given.idle, given.time, given.gpu
    if idle is None or time is None or gpu is None:
        return abstain(CODE, "a profile of GPU work")
    together = gpu.breakdown.together
    n_work = together.n_compute + together.n_communication + together.n_copies + together.n_sets
    mean_s = together.busy_ns * 1e-9 / max(n_work, 1)
    if mean_s >= TINY_S:
        return None
    sizes = (
        number(
            f"pieces of work {'a step' if given.steps else 'in all'}",
            n_work / (given.steps or 1),
            "count",
            "profile breakdown.together.n_compute + n_communication + n_copies + n_sets",
        ),
        number("mean time of one", mean_s, "s", "profile breakdown.together.busy_ns"),
    )
    parts = time.idle(CAUSE)
    if time.share(parts) < LEAST_SHARE:
        return _beyond_reading(given, sizes)
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
            *sizes,
        ),
        advice="make fewer and longer kernels: compile, or a larger batch; a graph does not close these gaps",
        levers=("compile",),
        parts=parts,
    )


def _beyond_reading(given: DiagnosisInput, sizes: tuple[FindingEvidence, ...]) -> Verdict:
    """Judges the time of a decode step's kernels beyond what reading weights and cache takes."""
    case, here, time, step_s = given.case, given.site, given.time, given.step_s
    if case is None or here is None or time is None or step_s is None:
        return None
    if case.workload.pass_ != "decode":
        return None
    (least,) = floor(case, calibration=here.calibration, device=here.device).phases
    work = all_work(time)
    beyond = 1 - least.memory_s / max(sum(work.values()), least.memory_s)
    parts = {name: seconds * beyond for name, seconds in work.items()}
    if time.share(parts) < LEAST_BEYOND:
        return None
    return Symptom(
        title="Many short kernels, far below the device's bandwidth",
        cause=f"Each kernel is short and ends before it draws the whole bandwidth: reading weights and cache "
        f"would take {least.memory_s / step_s:.0%} of the step.",
        evidence=(
            *sizes,
            number("step", step_s, "s", "measurement summary.median_s"),
            number("least time for reading", least.memory_s, "s", "floor phases[0].memory_s"),
        ),
        advice="compute more sequences at once, check several guessed tokens in one step, or make fewer and "
        "longer kernels",
        levers=("fused-step", "compile"),
        parts=parts,
    )
