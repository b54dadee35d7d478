"""Communication is not hidden behind compute

Sees: time in which a collective ran and no kernel computed beside it.
Costs: the GPU's arithmetic units stand still while gradients or parameters travel.
Example: gradients that are reduced after the backward pass, and not in buckets during it.
Lever: none on one GPU; reduce in buckets, overlap, prefetch shards, accumulate gradients.
Wrong when: a rank is late and the other traces are missing. With the traces of all ranks, COMM002
judges the wait for a late rank.
"""

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.diagnose.kernels import chosen, parts, share_of_waiting

CODE = "COMM001"


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the breakdown of the GPU's time."""
    gpu, time = given.gpu, given.time
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    together = gpu.breakdown.together
    if not together.communication_ns:
        return None
    alone = together.exposed_communication_ns / together.communication_ns
    groups = chosen(gpu, lambda each: each.category == "communication")
    own = 1 - share_of_waiting(gpu, given.rank)
    held = {name: seconds * own for name, seconds in parts(time, groups).items()}
    if time.share(held) < WORTH_SHARE:
        return None
    first = tuple(
        number(each.name, each.exposed_ns * 1e-9, "s", f"profile collectives[{at}].exposed_ns")
        for at, each in enumerate(gpu.collectives[:2])
    )
    return Symptom(
        cause="Collectives run while no kernel computes beside them.",
        evidence=(
            number(
                "share of communication without compute beside it",
                alone,
                "share",
                "profile breakdown.together.exposed_communication_ns over communication_ns",
            ),
            *first,
        ),
        advice="reduce in buckets during backward, prefetch shards, accumulate gradients"
        + ("" if given.job else ", and compare the traces of all ranks: one may be late"),
        parts=held,
    )
