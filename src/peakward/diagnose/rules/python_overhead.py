"""The program's own Python keeps the GPU waiting

Sees: idle time whose causes are host-bound and launch latency, while the host's part of the critical
path lies mostly outside the framework's operators and the driver's calls.
Costs: the GPU is idle for as long as Python loops, logs or builds lists between two operators.
Example: a loop over the sequences of a batch with Python arithmetic between small operators.
Lever: compile and cuda-graphs remove the Python of a step where it can be traced or captured.
Wrong when: the path's time lies in extensions that record no operators, which look like Python here.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.kernels import PYTHON, dispatch_parts

CODE = "HOST003"
LEAST_SHARE = 0.1
"""As for launching, every step has some gaps that the host causes."""


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the idle causes of launching, and by the host's part of the critical path."""
    found, gpu = dispatch_parts(given), given.gpu
    if found is None or gpu is None:
        return abstain(CODE, "a profile of GPU work")
    if found.python_share is None or gpu.path is None:
        return abstain(CODE, "a critical path")
    if given.time is None or given.time.share(found.python) < LEAST_SHARE:
        return None
    longest = next((each for each in gpu.path.shares if each.kind == PYTHON), None)
    where = (
        ()
        if longest is None
        else (
            number(
                f"longest under one range: {longest.name or 'none'}",
                longest.ns * 1e-9,
                "s",
                f"profile path.shares[{PYTHON}, {longest.name}].ns",
            ),
        )
    )
    return Symptom(
        cause="Between two launches the host runs Python code outside of any operator.",
        evidence=(
            number(
                "the host's time on the critical path that is Python",
                found.python_share,
                "share",
                "profile path.by_kind_ns.host over host + operator + call",
            ),
            *where,
        ),
        advice="vectorise loops over tensors, move bookkeeping out of the step, compile what remains",
        levers=("compile", "cuda-graphs"),
        parts=found.python,
    )
