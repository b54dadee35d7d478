"""Where the time of the baseline and of the best goes, by profiled steps."""

from typing import NamedTuple

from peakward.records.profile import IDLE_CAUSES, CaseProfile, DeviceTime, KernelGroup, WorkPhase
from peakward.records.study import Cell, Column, Study, Table
from peakward.report import profile_work
from peakward.report.document import Block, Note, Paragraph, Section, TableBlock
from peakward.report.format import format_cell
from peakward.report.profile_work import wording
from peakward.report.run.investigation import RunParts

N_CAUSES = 3
N_KERNELS = 5
LEAST_SHARE = 0.01
"""Work below this share in every configuration is left out of the table."""


class Explained(NamedTuple):
    """A configuration's name in the report, and its profile."""

    name: str
    found: CaseProfile

    @property
    def time(self) -> DeviceTime:
        """The time of all devices together."""
        return self.found.profile.breakdown.together


def section(study: Study, read: RunParts) -> Section:
    """Busy and idle time, then work by phase and category, side by side; then the last configuration's top
    kernels.

    The section is empty where nothing was profiled, or no work was seen.
    """
    profiles = {each.case: each for each in study.profiles}
    explained = [
        Explained(point.name, profiles[point.case])
        for point in read.points
        if point.case in profiles
    ]
    seen = [each for each in explained if each.time.span_ns]
    blocks: list[Block] = []
    if seen:
        device = "GPU" if study.environment.device_type == "cuda" else "CPU"
        found = (spans(seen, device), causes(seen, device), work(seen), kernels(seen[-1]))
        blocks.append(Paragraph(text=_said(seen)))
        blocks += [TableBlock(table=table) for table in found if table.rows]
        blocks += _incomplete(seen, device)
    return Section(title="Where the time goes", blocks=tuple(blocks))


def _said(seen: list[Explained]) -> str:
    steps = " and ".join(
        f"{format_cell(each.found.n_steps, 'count')} steps of the {each.name}" for each in seen
    )
    return f"From {steps} under a profiler, whose times only this section and the findings use."


def _incomplete(seen: list[Explained], device: str) -> list[Block]:
    """Says once what profiles lack. A CPU's lack the work of a GPU, which is no reason to warn."""
    names: dict[str, list[str]] = {}
    for each in seen:
        for text in each.found.profile.incomplete:
            names.setdefault(text, []).append(each.name)
    kind = Paragraph if device == "CPU" else Note
    return [kind(text=f"{' and '.join(of).capitalize()}: {text}") for text, of in names.items()]


def spans(seen: list[Explained], device: str) -> Table:
    """How much of the profiled span anything ran."""
    return Table(
        title="The profiled steps",
        columns=(
            Column(name="configuration"),
            Column(name="span", unit="s"),
            Column(name=f"{device} busy", unit="s"),
            Column(name="busy", unit="share"),
            Column(name="idle", unit="share"),
        ),
        rows=tuple(
            (
                each.name,
                each.time.span_ns * profile_work.NS,
                each.time.busy_ns * profile_work.NS,
                each.time.busy_ns / each.time.span_ns,
                each.time.idle_ns / each.time.span_ns,
            )
            for each in seen
        ),
    )


def causes(seen: list[Explained], device: str) -> Table:
    """The idle causes that rank first in any configuration."""
    by_name = [_causes(each) for each in seen]
    first = {
        cause: shares[cause]
        for shares in by_name
        for cause in sorted(shares, key=lambda name: -shares[name])[:N_CAUSES]
        if shares[cause]
    }
    order = sorted(first, key=lambda cause: -max(each.get(cause, 0.0) for each in by_name))
    return Table(
        title=f"Why the {device} was idle",
        columns=(
            Column(name="cause", unit="name"),
            *(Column(name=each.name, unit="share") for each in seen),
        ),
        rows=tuple(
            (IDLE_CAUSES[cause], *(shares.get(cause) for shares in by_name)) for cause in order
        ),
        note="Shares of the span. The profiler slows the host, so shares that the host causes are "
        "upper limits.",
    )


def _causes(each: Explained) -> dict[str, float]:
    idle = each.found.profile.idle
    by_cause = {} if idle is None else idle.together.by_cause_ns
    return {cause: ns / each.time.span_ns for cause, ns in by_cause.items()}


def work(seen: list[Explained]) -> Table:
    """Time by phase and category, for a step of each configuration."""
    by_name = [{_key(group): group for group in each.found.profile.categories} for each in seen]
    keys = {
        key for groups in by_name for key, group in groups.items() if group.share >= LEAST_SHARE
    }
    order = sorted(keys, key=lambda key: _place(key, by_name))
    return Table(
        title="Work by phase and category",
        columns=(
            Column(name="phase"),
            Column(name="category"),
            *(
                column
                for each in seen
                for column in (
                    Column(name=f"{each.name}, a step", unit="s"),
                    Column(name="share", unit="share"),
                )
            ),
        ),
        rows=tuple(
            (
                *key,
                *(
                    cell
                    for each, groups in zip(seen, by_name, strict=True)
                    for cell in _cells(each, groups.get(key))
                ),
            )
            for key in order
        ),
        note=f"Work below {format_cell(LEAST_SHARE, 'share')} in every configuration is left out.",
    )


Key = tuple[WorkPhase | None, str]


def _key(group: KernelGroup) -> Key:
    return group.phase, group.name


def _place(key: Key, by_name: list[dict[Key, KernelGroup]]) -> tuple[int, float]:
    """Sort by phase, then by the largest time in any configuration."""
    phase = len(profile_work.PHASES) if key[0] is None else profile_work.PHASES.index(key[0])
    return phase, -max(groups[key].share for groups in by_name if key in groups)


def _cells(each: Explained, group: KernelGroup | None) -> tuple[Cell, Cell]:
    if group is None:
        return None, None
    return group.total_ns * profile_work.NS / each.found.n_steps, group.share


def kernels(each: Explained) -> Table:
    """The longest kernels of one configuration, in columns that fit a terminal of 80."""
    groups, words = each.found.profile.kernels[:N_KERNELS], wording(each.found.profile)
    return Table(
        title=f"The {len(groups)} {words.units} that take most time in the {each.name}",
        columns=(
            Column(name=words.unit, unit="name"),
            Column(name="category"),
            Column(name="phase"),
            Column(name="n", unit="count"),
            Column(name="total", unit="s"),
            Column(name="share", unit="share"),
        ),
        rows=tuple(
            (one.name, one.category, one.phase, one.n, one.total_ns * profile_work.NS, one.share)
            for one in groups
        ),
        note=f"Over {format_cell(each.found.n_steps, 'count')} steps.",
    )
