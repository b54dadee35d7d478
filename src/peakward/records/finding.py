"""What holds a step back, told from stored numbers: findings, and what could not be judged."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.case import Case
from peakward.records.measurement import Interval
from peakward.records.result import Result

Quantity = Literal["text", "count", "s", "bytes", "ratio", "share", "flops_per_s"]
"""Of `records.study.Unit` those that evidence comes in."""
Basis = Literal["measured step", "watched step", "profiled step", "profiled span", "profiled work"]
"""What shares are of: an unprofiled median; the mean unprofiled step of a live loop; one of several
profiled steps; all that was recorded."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stored number that a finding stands on."""

    name: str
    value: float
    unit: Quantity
    stored: str
    """Where it is: the record and the path in it, as `profile idle.together.by_cause_ns.host_bound`;
    `case …` also of what follows from the case alone."""


class LeverGain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a lever is predicted to do about a finding."""

    lever: str
    predicted: Interval | None
    """Step time without over step time with the lever, whatever it changes beside the finding."""
    gain: Interval | None
    """`predicted`, no end of it above the finding's bound: what the lever can give through this
    finding. None: not computed."""
    saved_bytes: int | None
    """Less memory needed, by the same prediction."""
    source: str
    """What it was predicted by, or why it was not computed."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that holds the step back."""

    code: str
    """Family (HOST, MEM, BW, PREC, ATTN, COMM, GEN, NUM, DEV, LOOP, TIME) and three digits; never given
    anew."""
    title: str
    cause: str
    evidence: tuple[Evidence, ...]
    advice: str
    """What to change in the program, beside or instead of the levers."""
    gains: tuple[LeverGain, ...] = ()
    """Of each lever that applies and is not predicted to be of no use, the best first: of findings
    about time the fastest, about memory (MEM) the one that saves most."""
    held_back_s: float | None = None
    """The time that this is about: of one step, or of the whole span where steps are not known."""
    beyond_s: float | None = None
    """What of it no finding ranked above is about. These add up to no more than the whole."""
    share: float | None = None
    """`held_back_s` of the whole time, or `held_back_bytes` of the memory that there is; 1 of what
    keeps the case from running at all."""
    bound: float | None = None
    """Amdahl's: the speed-up if that time were 0. None where the time that a lever could take away is
    not known."""
    held_back_bytes: int | None = None


class Abstention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule that could not judge."""

    code: str
    missing: tuple[str, ...]
    """The inputs that the rule needs and did not have."""


class Diagnosis(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the rules say of one case or one trace."""

    ROWS: ClassVar[tuple[str, ...]] = ("findings",)

    subject: str
    """The case's label or the trace's file."""
    case: Case | None
    whole_s: float | None
    """What shares of time are of; None without times."""
    basis: Basis | None
    findings: tuple[Finding, ...]
    """Ranked: what holds back most first, then what loses nothing, and last the time that no other finding
    is about (`diagnose.examine`)."""
    abstentions: tuple[Abstention, ...]
    clean: tuple[str, ...]
    """Codes of the rules that looked and found nothing."""
