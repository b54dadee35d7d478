"""What a watch keeps of a user's loop: the times of its steps, and one window as its reader read it."""

import msgspec

from peakward.records.finding import Diagnosis
from peakward.records.profile import Profile


class Pauses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps that took at least three times the median of those before them."""

    n: int = 0
    beyond_s: float = 0.0
    """What they took beyond that median, in sum."""
    waited_s: float = 0.0
    """Of that, in waits for data."""
    collected_s: float = 0.0
    """Of that and of no wait, in Python's garbage collector."""
    longest_s: float = 0.0
    """The longest such step, whole."""


class LoopTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unprofiled steps of a loop, by the host's clock, from the end of one to the end of the next.

    The first few, profiled ones and the one in which a profiler attaches itself are not among them.
    """

    n_steps: int
    total_s: float
    """Of all of them; the rest is of these too, but for what says that it is of a sample."""
    median_s: float | None
    """Of a sample that is evenly spaced over the loop; None without a step."""
    spread_s: float | None
    """From the first quartile of that sample to the third; None below four steps."""
    change: float | None
    """Relative, from the median of its first third to that of its last; None below 5 steps."""
    change_p_value: float | None
    """How often steps in random order would rise or fall as steadily (Mann–Kendall)."""
    waited_s: float | None
    """In the loader's `next`, collections within it left out; None where batches are not drawn
    through the watch."""
    n_collections: int
    """Of Python's garbage collector, automatic ones included."""
    collected_s: float
    longest_collection_s: float
    pauses: Pauses
    n_windows: int
    """That were profiled."""
    windows_s: float
    """In which the loop stood still for them: attaching the profiler, stopping it, writing."""

    @property
    def mean_s(self) -> float:
        """Of at least one step."""
        return self.total_s / self.n_steps

    @property
    def typical_s(self) -> float:
        """The mean step without what pauses took beyond the median."""
        return (self.total_s - self.pauses.beyond_s) / self.n_steps


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One window of a watched loop: its trace analysed and examined."""

    profile: Profile
    device: str | None
    """The catalogue's key of what it ran on."""
    diagnosis: Diagnosis
    """With the loop's times until then."""
