"""The words of a trace's report: they differ between a GPU's kernels and the host's operators."""

from dataclasses import dataclass

from peakward.records.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words that depend on what ran the profiled work."""

    unit: str
    """One row of work, in a column's heading."""
    units: str
    """The plural of `unit`."""
    device: str
    """The owner of the time."""
    busy: str
    """The headline's words for the busy share of the span."""
    categories: str
    """The title of the table by category and phase."""
    nothing: str
    """The sentence for a trace without any work."""
    parts: dict[str, str]
    """Names for rows of the table of time, where they differ from those for a GPU."""
    conventions: str
    """How times are counted."""


GPU = Wording(
    unit="kernel",
    units="kernels",
    device="the GPU's time",
    busy="GPU busy",
    categories="GPU work by category and phase",
    nothing="no GPU work",
    parts={},
    conventions="Busy time counts each moment once, however many streams work; the tables of kernels add "
    "durations up. Over several devices, times are sums.",
)
HOST = Wording(
    unit="operator",
    units="operators",
    device="the CPU's time",
    busy="CPU busy with operators",
    categories="Operators by category and phase, self time",
    nothing="no operators",
    parts={"busy": "in operators", "idle": "outside operators: Python, and waiting"},
    conventions="Time in operators counts each moment once, however many threads work; the tables of "
    "operators add self times up: an operator's duration minus that of the operators inside "
    "it. The category `framework` is views, allocation and autograd's own work.",
)


def wording(found: Profile) -> Wording:
    """The words for this profile."""
    return HOST if found.is_of_host else GPU
