"""No other finding is about much of the time

Sees: the time that the other findings leave, without matrix products, attention and convolutions, which
are the purpose of a model. The rule applies if that is half of the time, or if a fifth is without any
computing (idle time, copies), or a third in kernels of one category. It names the largest part; for
idle time, also the call that the host was in.
Costs: the rule knows where the time goes and not why; no finding above would bring it back.
Example: a GPU idle for 463 ms of 475 while its host is in one call of `cudaEventSynchronize`.
Lever: none; the named part says where to look, and what to record next.
Wrong when: the step is meant to do that, such as a program that only copies.
"""

from collections.abc import Sequence
from typing import NamedTuple

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number
from peakward.diagnose.kernels import chosen, shown
from peakward.diagnose.time_parts import TimeParts, without, work_part
from peakward.records.finding import FindingEvidence
from peakward.records.profile import IDLE_CAUSES, IdleCall, Profile

CODE = "TIME001"
WHAT_A_MODEL_RUNS_FOR = ("matmul", "attention", "convolution")
CUTLASS = "device_kernel"
"""The name of CUTLASS's products and attention. Profiles leave out its parameters, so that its category
is `other`: half of Mixtral's time on an H100."""
LEAST_SHARE = 0.5
"""The least unexplained share of the time. The highest of 48 recorded programs without a fault is 0.39."""
LEAST_LOST = 0.2
"""The least unexplained share of idle time or of copies. The highest of those programs is 0.10; its
host came late."""
LEAST_OF_A_KIND = 1 / 3
"""The least unexplained share of one category of kernels, or outside operators. The highest of those
programs is 0.25, in a fused optimiser."""
IDLE, COPIES, OUTSIDE = "idle time", "copies and sets", "outside"
N_SHOWN = 3


class _Kind(NamedTuple):
    """The time of one kind that no finding explains."""

    name: str
    parts: dict[str, float]
    """The seconds by part of the time."""

    @property
    def seconds(self) -> float:
        """The seconds of all parts."""
        return sum(self.parts.values())


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the parts of the time, less those that findings explain."""
    profile, time = given.profile, given.time
    if profile is None or time is None:
        return abstain(CODE, "a profile")
    kinds = _kinds(profile, time, without(time.parts, given.explained))
    left = sum(each.seconds for each in kinds)
    if not kinds or not time.whole_s:
        return None
    largest = kinds[0]
    least = LEAST_LOST if largest.name in (IDLE, COPIES) else LEAST_OF_A_KIND
    if left < LEAST_SHARE * time.whole_s and largest.seconds < least * time.whole_s:
        return None
    named = _named(profile, largest)
    return Symptom(
        title=f"Unexplained time: {named}",
        cause=f"No other finding explains {left / time.whole_s:.0%} of the time; the largest part of it is "
        f"{named}.",
        evidence=(*_shares(kinds, time), *_evidence(profile, largest, given.steps)),
        advice="look at this part of the trace, and record what the rules that could not judge need",
        parts=largest.parts,
    )


def _kinds(profile: Profile, time: TimeParts, left: dict[str, float]) -> list[_Kind]:
    """The kinds of unexplained time, the largest first."""
    category = {
        work_part(each.phase, each.name): "matmul" if each.name == CUTLASS else each.category
        for each in profile.kernels
    }
    by_kind: dict[str, dict[str, float]] = {}
    for part, seconds in left.items():
        of = category.get(part)
        if seconds and of not in WHAT_A_MODEL_RUNS_FOR:
            by_kind.setdefault(_kind(part, of), {})[part] = seconds
    outside_s = time.whole_s - sum(time.parts.values())
    if outside_s > 0 and profile.is_of_host:
        by_kind[OUTSIDE] = {OUTSIDE: outside_s}
    found = [_Kind(name, parts) for name, parts in by_kind.items()]
    return sorted(found, key=lambda each: -each.seconds)


def _kind(part: str, category: str | None) -> str:
    if part.startswith("idle."):
        return IDLE
    return COPIES if category == "memory" else category or part


def _named(profile: Profile, kind: _Kind) -> str:
    """The kind in words. Idle time has its largest cause and the host's call, and copies have their
    direction."""
    if kind.name == OUTSIDE:
        return "time outside operators"
    if kind.name == COPIES:
        largest = profile.transfers[0].what
        return "sets of memory" if largest == "set" else f"copies {largest.replace('_', ' ')}"
    if kind.name != IDLE:
        units = "operators" if profile.is_of_host else "kernels"
        return f"{units} of the category {kind.name}"
    cause = _largest_cause(kind)
    call = next((each.call for each in _calls(profile, cause)), None)
    return f"GPU idle, {IDLE_CAUSES[cause]}" + (f", host in {call}" if call else "")


def _largest_cause(kind: _Kind) -> str:
    return max(kind.parts, key=lambda part: kind.parts[part]).removeprefix("idle.")


def _calls(profile: Profile, cause: str) -> tuple[IdleCall, ...]:
    """The calls that the host was in for most of that idle time."""
    if profile.idle is None:
        return ()
    least_ns = profile.idle.together.by_cause_ns.get(cause, 0) / 2
    return tuple(each for each in profile.idle.calls if each.cause == cause and each.ns >= least_ns)


def _shares(kinds: Sequence[_Kind], time: TimeParts) -> tuple[FindingEvidence, ...]:
    """The unexplained shares of the first few kinds."""
    stored = {
        IDLE: "profile idle.together.by_cause_ns",
        COPIES: "profile breakdown.together.exposed_memory_ns",
        OUTSIDE: "profile breakdown.together.span_ns - busy_ns",
    }
    return tuple(
        number(
            f"without a finding: {each.name}",
            each.seconds / time.whole_s,
            "share",
            stored.get(each.name, f"profile kernels[{each.name}].total_ns"),
        )
        for each in kinds[:N_SHOWN]
    )


def _evidence(profile: Profile, kind: _Kind, n_steps: int | None) -> tuple[FindingEvidence, ...]:
    """The evidence of the largest kind."""
    if kind.name == OUTSIDE:
        return ()
    if kind.name == COPIES:
        most = profile.transfers[0]
        return (
            number(most.what.replace("_", " "), most.n, "count", "profile transfers[0].n"),
            number("their bytes", most.n_bytes, "bytes", "profile transfers[0].n_bytes"),
            number("their time", most.sum_ns * 1e-9, "s", "profile transfers[0].sum_ns"),
        )
    if kind.name != IDLE:
        return shown(profile, chosen(profile, lambda each: each.category == kind.name), n_steps)
    cause = _largest_cause(kind)
    seen_ns = 0 if profile.idle is None else profile.idle.together.by_cause_ns.get(cause, 0)
    return (
        number(
            f"{IDLE_CAUSES[cause]}, profiled",
            seen_ns * 1e-9,
            "s",
            f"profile idle.together.by_cause_ns.{cause}",
        ),
        *(
            number(
                f"{each.call} in such gaps, the longest",
                each.longest_ns * 1e-9,
                "s",
                f"profile idle.calls[{each.call}].longest_ns",
            )
            for each in _calls(profile, cause)
        ),
    )
