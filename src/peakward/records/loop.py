"""The records of a watched loop: the times of its steps, and one profiled window."""

import msgspec

from peakward.records.finding import Diagnosis
from peakward.records.profile import Profile


class Pauses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps that took at least three times the median of those before them."""

    n: int = 0
    beyond_s: float = 0.0
    """The time beyond that median, summed over these steps."""
    waited_s: float = 0.0
    """The part of `beyond_s` that is waits for data."""
    collected_s: float = 0.0
    """The part of `beyond_s` outside waits that is Python's garbage collection."""
    longest_s: float = 0.0
    """The whole duration of the longest such step."""


class LoopTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unprofiled steps of a loop, by the host's clock, from the end of one step to the end of the next.

    The first few steps, profiled steps and the step in which the profiler attaches itself are left out.
    """

    n_steps: int
    total_s: float
    """The time of all these steps. The other fields are about all of them too, unless they name a sample."""
    median_s: float | None
    """The median of a sample that is spread evenly over the loop; None without a step."""
    spread_s: float | None
    """The interquartile range of that sample; None below four steps."""
    change: float | None
    """The relative change from the median of the sample's first third to that of its last; None below 5
    steps."""
    change_p_value: float | None
    """The probability that steps in random order rise or fall as steadily (Mann–Kendall)."""
    waited_s: float | None
    """Time in the loader's `next`, without garbage collections in it. None where batches are not drawn
    through the watch."""
    n_collections: int
    """Collections by Python's garbage collector, automatic ones included."""
    collected_s: float
    longest_collection_s: float
    pauses: Pauses
    n_windows: int
    """Windows that were profiled."""
    windows_s: float
    """The time that the loop stood still for windows: to attach the profiler, stop it and write the trace."""

    @property
    def mean_s(self) -> float:
        """The mean time of a step; it needs at least one step."""
        return self.total_s / self.n_steps

    @property
    def typical_s(self) -> float:
        """The mean step without the time that pauses took beyond the median."""
        return (self.total_s - self.pauses.beyond_s) / self.n_steps


class WatchedWindow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One window of a watched loop: its trace, analysed and diagnosed."""

    profile: Profile
    device: str | None
    """The device's key in the catalogue."""
    diagnosis: Diagnosis
    """The diagnosis of the window, with the loop's times until then."""
