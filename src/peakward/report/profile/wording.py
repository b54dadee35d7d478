"""What a trace's report calls things: a GPU's kernels, or the operators of the host."""

from dataclasses import dataclass

from peakward.records.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words that depend on whose work a profile is about."""

    unit: str
    """What one row of work is, in a column's head."""
    units: str
    """Several of them."""
    device: str
    """Whose time it is."""
    busy: str
    """How a headline says what share of the span was taken."""
    categories: str
    """Title of the table by category and phase."""
    nothing: str
    """Said where there is no work at all."""
    parts: dict[str, str]
    """What the rows of the table of time are called, where not as they are for a GPU."""
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
    conventions="Busy counts each moment once, whatever number of streams works in it; the tables "
    "of kernels add durations up. Over several devices, times are sums.",
)
HOST = Wording(
    unit="operator",
    units="operators",
    device="the CPU's time",
    busy="CPU busy with operators",
    categories="Operators by category and phase, self time",
    nothing="no operators",
    parts={"busy": "in operators", "idle": "outside operators: Python, and waiting"},
    conventions="Time in operators counts each moment once, whatever number of threads works in it; "
    "the tables of operators add self times up: an operator's duration less that of the operators "
    "inside it. The category `framework` is views, allocation and autograd's own work.",
)


def wording(found: Profile) -> Wording:
    """The words for this profile."""
    return HOST if found.is_of_host else GPU
