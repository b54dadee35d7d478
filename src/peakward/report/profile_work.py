"""Tables of a trace's work by category, kernel and operator, in the words of the GPU or of the host."""

from collections.abc import Sequence
from dataclasses import dataclass

from peakward.records.profile import KernelGroup, Profile, WorkPhase
from peakward.records.study import Column, Table
from peakward.report.columns import cut


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


def wording(found: Profile) -> Wording:
    """The words for this profile."""
    return HOST if found.is_of_host else GPU


PHASES: tuple[WorkPhase, ...] = ("forward", "backward", "optimizer", "other")


def categories(found: Profile) -> Table:
    """Kernel time by category, with a column for each phase that has any."""
    phases = [phase for phase in PHASES if any(each.phase == phase for each in found.categories)]
    totals: dict[str, dict[str, int]] = {}
    for each in found.categories:
        by_phase = totals.setdefault(each.name, {})
        by_phase[str(each.phase)] = by_phase.get(str(each.phase), 0) + each.total_ns
    whole = sum(sum(by_phase.values()) for by_phase in totals.values())
    order = sorted(totals, key=lambda name: -sum(totals[name].values()))
    return Table(
        title=wording(found).categories,
        columns=(
            Column(name="category"),
            *(Column(name=phase, unit="s") for phase in phases),
            Column(name="total", unit="s"),
            Column(name="share", unit="share"),
        ),
        rows=tuple(_category(name, totals[name], phases, whole) for name in order),
    )


Row = tuple[str | int | float | None, ...]


def _category(name: str, by_phase: dict[str, int], phases: Sequence[WorkPhase], whole: int) -> Row:
    total = sum(by_phase.values())
    cells = (by_phase[phase] * NS if phase in by_phase else None for phase in phases)
    return (name, *cells, total * NS, share(total, whole))


NS = 1e-9


def share(part_ns: int, whole_ns: int) -> float | None:
    """The part's share of the whole; None where the whole is 0."""
    return part_ns / whole_ns if whole_ns else None


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
TYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "double": "fp64"}
LONGEST = 44
"""The most characters of a kernel's name on the one screen."""
N_OPERATORS = 20


def top(found: Profile, n: int) -> Table:
    """The kernels or operators that take most, in the width of a screen."""
    groups, words = found.kernels[:n], wording(found)
    return Table(
        title=f"The {len(groups)} {words.units} that take most time",
        columns=(
            Column(name=words.unit, unit="name"),
            Column(name="category"),
            Column(name="phase"),
            Column(name="n", unit="count"),
            Column(name="total", unit="s"),
            Column(name="share", unit="share"),
            Column(name="median", unit="s"),
        ),
        rows=tuple(
            (cut(each.name, LONGEST), *_kernel(each)[1:6], each.median_ns * NS) for each in groups
        ),
    )


def kernels(found: Profile) -> Table:
    """Kernels or operators by phase, with the spread of their durations."""
    words = wording(found)
    return Table(
        title=f"{words.units.capitalize()} by phase",
        columns=(
            Column(name=words.unit, unit="name"),
            Column(name="category"),
            Column(name="phase"),
            Column(name="n", unit="count"),
            Column(name="total", unit="s"),
            Column(name="share", unit="share"),
            *(Column(name=name, unit="s") for name in ("mean", "median", "min", "max", "sd")),
        ),
        rows=tuple(_kernel(each) for each in found.kernels),
    )


def _kernel(one: KernelGroup) -> Row:
    spread = (one.mean_ns, one.median_ns, one.min_ns, one.max_ns, one.std_ns)
    return (
        one.name,
        one.category,
        one.phase,
        one.n,
        one.total_ns * NS,
        one.share,
        *(each * NS for each in spread),
    )


def fused(found: Profile) -> Table:
    """The operators that a compiler put into its kernels."""
    groups = [each for each in found.kernels if each.fused]
    return Table(
        title="Compiled kernels, and the operators that they fuse",
        columns=(
            Column(name="kernel", unit="name"),
            Column(name="phase"),
            Column(name="n", unit="count"),
            Column(name="total", unit="s"),
            Column(name="operators", unit="name"),
        ),
        rows=tuple(
            (each.name, each.phase, each.n, each.total_ns * NS, ", ".join(each.fused))
            for each in groups
        ),
    )


def operators(found: Profile) -> Table:
    """The rates that operators reached."""
    return Table(
        title="Operators whose shapes were recorded",
        columns=(
            Column(name="operator", unit="name"),
            Column(name="sizes", unit="name"),
            Column(name="type"),
            Column(name="n", unit="count"),
            Column(name="self time" if found.is_of_host else "kernels", unit="s"),
            Column(name="rate", unit="flops_per_s"),
            Column(name="bandwidth", unit="bytes_per_s"),
            Column(name="share of roof", unit="share"),
        ),
        rows=tuple(
            (
                each.name,
                each.dims,
                TYPES.get(each.dtype or "", each.dtype),
                each.n,
                each.kernel_ns * NS,
                each.flops_per_s,
                each.bytes_per_s,
                each.roof_share,
            )
            for each in found.operators[:N_OPERATORS]
        ),
        note="FLOPs are those that the maths needs; bytes count each input and output once. The "
        "roof is the datasheet's: the longer of FLOPs over the peak of their type and bytes "
        "over the bandwidth.",
    )
