"""A rank is late, and the others wait for it

Sees: in the traces of several ranks, how long each rank waits in the collectives that all of them run
until the last one begins. A rank is late if more than half of this waiting is for it, and the others
wait for it at least 3% of their time. `peakward run --gpus` has no traces: it compares how long each rank
works itself in profiled steps of every layout, and names one by the spread over at least three of them.
Costs: a collective ends when the last rank has joined it: one late rank makes all of them slow.
Example: one of eight ranks reads its batches from a slower disk, and seven wait 30 ms in an all-reduce.
Lever: none; the late rank's own findings say where its time goes.
Wrong when: the delay came once, in the few steps that the traces hold; or the late rank has no trace
file.
"""

from statistics import median

from peakward.diagnose.diagnosis_input import (
    WORTH_SHARE,
    DiagnosisInput,
    Symptom,
    Verdict,
    abstain,
    number,
)
from peakward.diagnose.kernels import chosen, parts, share_of_waiting
from peakward.records.finding import FindingEvidence
from peakward.records.profile import Job, Rank

CODE = "COMM002"


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the traces of all ranks."""
    gpu, time, job, rank = given.gpu, given.time, given.job, given.rank
    if gpu is None or time is None:
        return abstain(CODE, "a profile of GPU work")
    if job is None or rank is None:
        communicates = gpu.breakdown.together.communication_ns
        return abstain(CODE, "traces of the job's other ranks") if communicates else None
    late = next((each for each in job.ranks if each.rank == job.late), None)
    if late is None:
        return None
    others = [each for each in job.ranks if each is not late]
    evidence = _evidence(job, late, others)
    advice = (
        f"read the findings of rank {late.rank} alone, and mend what keeps it from joining in time"
    )
    if rank.rank == late.rank:
        mean_ns = sum(each.waited_for_late_ns for each in others) / len(others)
        share = mean_ns / gpu.breakdown.together.span_ns
        return Symptom(cause=_cause(late, others), evidence=evidence, advice=advice, share=share)
    share = share_of_waiting(gpu, rank)
    groups = chosen(gpu, lambda each: each.category == "communication")
    held = {name: seconds * share for name, seconds in parts(time, groups).items()}
    if time.share(held) < WORTH_SHARE:
        return None
    return Symptom(cause=_cause(late, others), evidence=evidence, advice=advice, parts=held)


def _cause(late: Rank, others: list[Rank]) -> str:
    waits = sorted(each.waited_for_late_ns for each in others)
    wait = "other rank waits" if len(others) == 1 else f"other {len(others)} ranks wait"
    said = (
        f"Rank {late.rank} is late: the {wait} {_range(waits[0], waits[-1])} for it in collectives."
    )
    why = {
        "was idle": _more(late.idle_ns, [each.idle_ns for each in others]),
        "computed": _more(late.compute_ns, [each.compute_ns for each in others]),
    }
    most = max(why, key=lambda each: why[each])
    if why[most] < waits[0] * 0.5:
        return said
    return f"{said} Its GPU {most} {_ms(why[most])} ms longer than those of the others."


def _more(its_ns: int | None, others_ns: list[int | None]) -> float:
    known = [each for each in others_ns if each is not None]
    return its_ns - median(known) if its_ns is not None and known else 0.0


def _range(least_ns: float, most_ns: float) -> str:
    least, most = _ms(least_ns), _ms(most_ns)
    return f"{least} ms" if least == most else f"{least} to {most} ms"


def _ms(ns: float) -> str:
    return f"{ns * 1e-6:.3g}"


def _evidence(job: Job, late: Rank, others: list[Rank]) -> tuple[FindingEvidence, ...]:
    at = job.ranks.index(late)
    mean_s = sum(each.waited_for_late_ns for each in others) * 1e-9 / len(others)
    return (
        number("late rank", late.rank, "count", "job late"),
        number("the others wait for it, mean", mean_s, "s", "job ranks[].waited_for_late_ns"),
        number("its own idle time", (late.idle_ns or 0) * 1e-9, "s", f"job ranks[{at}].idle_ns"),
        number("its compute", late.compute_ns * 1e-9, "s", f"job ranks[{at}].compute_ns"),
    )
