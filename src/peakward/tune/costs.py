"""How long the parts of an investigation should take: for its budget and for a dry run."""

import msgspec

from peakward.records.case import ModelCase
from peakward.records.protocol import Protocol

SCREEN = Protocol(
    min_steps=5, max_steps=50, max_timed_s=0.5, relative_half_width=0.02, phases=False
)
"""Enough to see a gain of a few per cent; what survives is confirmed in pairs."""
PAIR = Protocol(
    min_steps=5,
    max_steps=100,
    max_timed_s=1.0,
    relative_half_width=0.005,
    phases=False,
    fresh_process=True,
)
"""One letter of a pair: its median is one observation, so its own interval need not be narrow."""
CONFIRM_ORDERS = ("ABBAAB", "BAAB")
"""A base, B candidate; a process each. Five pairs in seven builds, each arm first as often."""
EXTRA_ORDER = "BAAB"
"""Once more where five pairs were inconclusive."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, to begin with guessed from the device and then learned from what ran."""

    build_s: float
    """One arm: process, model and warm-up, without compilation."""
    compile_s: float
    """On top of it, the first time a configuration compiles."""

    def screen_s(self, candidate: ModelCase) -> float:
        """One candidate screened."""
        compiles = candidate.configuration.compile != "none"
        return self.build_s + SCREEN.max_timed_s + (self.compile_s if compiles else 0.0)

    def confirm_s(self, candidate: ModelCase) -> float:
        """One lever confirmed: every letter times an arm, and nearly every one builds it anew.

        Rebuilding a compiled arm takes about a third of compiling it: its kernels come from
        torch's cache on disk, the tracing does not.
        """
        compiles = candidate.configuration.compile != "none"
        build_s = self.build_s + PAIR.max_timed_s + (self.compile_s / 3 if compiles else 0.0)
        return build_s * sum(len(order) for order in CONFIRM_ORDERS)


def guessed(case: ModelCase, floor_s: float | None) -> Costs:
    """Before anything ran: a case's warm-up is some ten steps, none faster than its floor."""
    warmup_s = 10 * (floor_s or 0.0)
    if case.device == "cuda":
        return Costs(build_s=2.0 + warmup_s, compile_s=15.0)
    return Costs(build_s=1.0 + warmup_s, compile_s=25.0)
