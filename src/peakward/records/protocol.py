"""How a case is measured."""

import msgspec

TIMEOUT_S = 600.0


class Protocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Warm-up, number of steps and limits of one measurement."""

    warmup_steps: int | None = None
    """Steps before the timed ones; None: until a test finds the step time steady."""
    min_steps: int = 10
    max_steps: int = 200
    max_timed_s: float = 5.0
    """No further step is begun after this long, once `min_steps` are done."""
    relative_half_width: float = 0.005
    """Timing ends early once the median's 95% interval is this narrow; 0: never."""
    phases: bool = True
    """Time forward, backward and optimiser in steps of their own, after the timed ones."""
    fresh_process: bool = False
    timeout_s: float = TIMEOUT_S
    """Wall time of the whole measurement, model building and compilation included."""

    @property
    def identity(self) -> "Protocol":
        """Equal for protocols that differ in their time-out alone: it ends a measurement, but what
        ended before it would have been the same under another."""
        return msgspec.structs.replace(self, timeout_s=TIMEOUT_S)
