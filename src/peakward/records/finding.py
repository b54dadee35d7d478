"""Findings about a slow or failing step, from stored numbers, and rules that could not judge."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.case import Case
from peakward.records.measurement import Interval
from peakward.records.profile import Job, Profile
from peakward.records.result import Result

Quantity = Literal["text", "count", "s", "bytes", "ratio", "share", "flops_per_s"]
"""The units of `records.study.Unit` that evidence uses."""
Basis = Literal["measured step", "watched step", "profiled step", "profiled span", "profiled work"]
"""The whole that shares refer to: an unprofiled median, the mean unprofiled step of a live loop, one of
several profiled steps, or everything that was recorded."""


class FindingEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stored number that supports a finding."""

    name: str
    value: float
    unit: Quantity
    stored: str
    """The record and the path of the number in it, such as `profile idle.together.by_cause_ns.host_bound`.
    `case …` also stands for facts that follow from the case alone."""


class LeverGain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The predicted effect of a lever on a finding."""

    lever: str
    predicted: Interval | None
    """Step time without the lever over step time with it, including effects beside the finding."""
    gain: Interval | None
    """`predicted`, cut at the finding's bound: the speed-up that the lever can give through this finding.
    None: not computed."""
    saved_bytes: int | None
    """The predicted reduction of needed memory."""
    source: str
    """The source of the prediction, or the reason why there is none."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that holds the step back."""

    code: str
    """A family (HOST, MEM, BW, PREC, ATTN, COMM, GEN, NUM, DEV, LOOP, TIME) and three digits. A code is never
    reused."""
    title: str
    cause: str
    evidence: tuple[FindingEvidence, ...]
    advice: str
    """The recommended change of the program, beside or instead of the levers."""
    gains: tuple[LeverGain, ...] = ()
    """The levers that apply and are not predicted to be useless, best first: by speed-up for findings about
    time, by saved memory for findings about memory (MEM)."""
    held_back_s: float | None = None
    """The time that the finding is about: in one step, or in the whole span where steps are not known."""
    beyond_s: float | None = None
    """The part of `held_back_s` that no higher-ranked finding covers. Over all findings these parts add up to
    at most the whole."""
    share: float | None = None
    """`held_back_s` over the whole time, or `held_back_bytes` over the available memory; 1 where the case
    cannot run at all."""
    bound: float | None = None
    """The speed-up if that time were 0, by Amdahl's law. None where the time that a lever could remove is not
    known."""
    held_back_bytes: int | None = None


class Abstention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule that could not judge."""

    code: str
    missing: tuple[str, ...]
    """The inputs that the rule needs and did not have."""


class Diagnosis(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules' results for one case or one trace."""

    ROWS: ClassVar[tuple[str, ...]] = ("findings",)

    subject: str
    """The case's label or the trace's file."""
    case: Case | None
    whole_s: float | None
    """The time that shares refer to; None without times."""
    basis: Basis | None
    findings: tuple[Finding, ...]
    """Ranked by time, the largest first; then findings that lose nothing; last the time that no other finding
    explains (`diagnose.examine`)."""
    abstentions: tuple[Abstention, ...]
    clean: tuple[str, ...]
    """Codes of the rules that looked and found nothing."""


class TraceReport(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The profile and the diagnosis of each trace, and the comparison of several."""

    ROWS: ClassVar[tuple[str, ...]] = ("profiles",)

    profiles: tuple[Profile, ...]
    diagnoses: tuple[Diagnosis, ...]
    """One for each profile. Empty for a part of a trace, because its rest would look idle to the rules."""
    job: Job | None = None
    """None for a single trace."""
    notes: tuple[str, ...] = ()
    """Files that are left out, each with its reason, and ranks that the files' names tell."""
