"""The protocol of a measurement."""

import msgspec

TIMEOUT_S = 600.0


class Protocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Warm-up, number of steps and limits of one measurement."""

    warmup_steps: int | None = None
    """Steps before the timed ones. None: until a test finds the step time steady."""
    min_steps: int = 10
    max_steps: int = 200
    max_timed_s: float = 5.0
    """No further step begins after this time, once `min_steps` are done."""
    relative_half_width: float = 0.005
    """Timing ends early once the median's 95% interval is this narrow. 0: never."""
    phases: bool = True
    """Time forward, backward and optimiser in separate steps, after the timed ones."""
    fresh_process: bool = False
    timeout_s: float = TIMEOUT_S
    """Wall time of the whole measurement, including model building and compilation."""

    @property
    def identity(self) -> "Protocol":
        """The protocol without its time-out. A time-out only ends a measurement: one that ended before it
        would have been the same under another time-out."""
        return msgspec.structs.replace(self, timeout_s=TIMEOUT_S)
