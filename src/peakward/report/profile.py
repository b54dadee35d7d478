"""The report of a trace: one screen, or everything."""

from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from peakward.records.finding import Diagnosis, Finding, TraceReport
from peakward.records.profile import IDLE_CAUSES, Job, Profile
from peakward.records.study import Table
from peakward.report import findings, profile_tables, profile_work, rank_sentences
from peakward.report.document import (
    Block,
    Document,
    Fact,
    Facts,
    Items,
    Note,
    Paragraph,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell
from peakward.report.profile_work import wording

TOP = 8
"""The number of kernels on the one screen."""
RANKS = 16
"""The number of rows on a job's page."""
LATE = "COMM002"
NOT_TIED = (
    "The ranks have no collective in common. Without one, clocks of different hosts cannot be "
    "compared, so waiting times between ranks are not computed."
)
LEAST_CAUSE = 0.01
"""An idle cause below this share is not named in the headline."""


def screen(found: TraceReport) -> Document:
    """One screen for a trace, or for the traces of a job together."""
    if found.job is not None:
        return _noted(job(found.job, found.diagnoses), found.notes)
    return _noted(summary(found.profiles[0], *found.diagnoses), found.notes)


def document(found: TraceReport) -> Document:
    """The full report of a trace, or of the traces of a job."""
    pages = [
        whole(profile, diagnosis)
        for profile, diagnosis in zip_longest(found.profiles, found.diagnoses)
    ]
    if found.job is not None:
        return _noted(whole_job(found.job, pages, found.diagnoses), found.notes)
    return _noted(pages[0], found.notes)


def _noted(page: Document, notes: Sequence[str]) -> Document:
    said = tuple(Note(text=each) for each in notes)
    return msgspec.structs.replace(page, blocks=(*page.blocks, *said))


def summary(found: Profile, diagnosis: Diagnosis | None = None) -> Document:
    """The limits of the step with cause and remedy, and where the time went, on one screen. A part of a trace
    has no diagnosis."""
    blocks: tuple[Block, ...] = (
        *_opening(found),
        *(() if diagnosis is None else findings.first(diagnosis, "it")),
        TableBlock(table=profile_tables.time(found)),
        *_filled(profile_tables.idle(found)),
        *_filled(profile_work.categories(found)),
        *_filled(profile_work.top(found, TOP)),
        *(() if diagnosis is None else findings.brief(diagnosis)),
    )
    return Document(
        title=found.source, headline=_headline(found), blocks=(*blocks, *_missing(found))
    )


def whole(found: Profile, diagnosis: Diagnosis | None = None) -> Document:
    """All contents of the profile, and the diagnosis."""
    several = _filled(profile_tables.devices(found)) if len(found.breakdown.devices) > 1 else ()
    sections = (
        Section(
            title="Findings",
            blocks=()
            if diagnosis is None
            else (*findings.blocks(diagnosis), *findings.missing(diagnosis)),
        ),
        Section(title="Time", blocks=(TableBlock(table=profile_tables.time(found)), *several)),
        Section(
            title="Idle",
            blocks=(
                *_filled(profile_tables.idle(found)),
                *_filled(profile_tables.idle_calls(found)),
                *_filled(profile_tables.delays(found)),
                *_filled(profile_tables.waits(found)),
            ),
        ),
        Section(
            title="Critical path",
            blocks=(*_filled(profile_tables.path(found)), *_filled(profile_tables.on_path(found))),
        ),
        Section(
            title=wording(found).units.capitalize(),
            blocks=(
                *_filled(profile_work.categories(found)),
                *_filled(profile_work.kernels(found)),
                *_filled(profile_work.fused(found)),
                *_filled(profile_work.operators(found)),
            ),
        ),
        Section(
            title="Copies and communication",
            blocks=(
                *_filled(profile_tables.copies(found)),
                *_filled(profile_tables.collectives(found)),
            ),
        ),
        Section(title="Method", blocks=_conventions(found)),
    )
    return Document(
        title=found.source,
        headline=_headline(found),
        blocks=(*_opening(found), *_missing(found)),
        sections=tuple(section for section in sections if section.blocks),
    )


def job(found: Job, diagnoses: Sequence[Diagnosis] = ()) -> Document:
    """Several ranks side by side on one page. Parts of traces have no diagnoses."""
    late = next((each for told in diagnoses for each in told.findings if each.code == LATE), None)
    if late is not None:
        headline = late.cause
    else:
        headline = f"{found.n_collectives:,} collectives that all of them have"
        if found.late is not None:
            headline += f"; rank {found.late} is late, and the others wait for it"
        elif found.straggler is not None:
            headline += f"; rank {found.straggler} is late more often than chance"
    notes = [
        *((_told_by(late),) if late is not None else ()),
        *_unmatched(found),
        *_absent(found),
    ]
    return Document(
        title=f"{len(found.ranks)} traces side by side",
        headline=headline,
        blocks=(
            *(Paragraph(text=text) for text in rank_sentences.sentences(found)),
            TableBlock(table=profile_tables.ranks(found, RANKS)),
            *(_filled(profile_tables.findings(found, diagnoses)) if diagnoses else ()),
            *(Note(text=text) for text in notes),
        ),
    )


def whole_job(
    found: Job, documents: Sequence[Document], diagnoses: Sequence[Diagnosis] = ()
) -> Document:
    """The job's page, then each rank's own report."""
    page = job(found, diagnoses)
    sections = [
        Section(title=each.title, blocks=(Paragraph(text=each.headline), *each.blocks))
        for each in documents
    ]
    inner = [
        Section(title=f"{each.title}: {part.title}", blocks=part.blocks, folded=part.folded)
        for each in documents
        for part in each.sections
    ]
    few, every = (TableBlock(table=profile_tables.ranks(found, most)) for most in (RANKS, None))
    blocks = tuple(every if each == few else each for each in page.blocks)
    return msgspec.structs.replace(page, blocks=blocks, sections=(*sections, *inner))


def _told_by(late: Finding) -> str:
    return f"{late.code}: to do: {late.advice}."


def _unmatched(found: Job) -> tuple[str, ...]:
    if not found.n_collectives:
        return (NOT_TIED,)
    if not found.n_unmatched:
        return ()
    return (
        f"{found.n_unmatched:,} collectives are left out of the comparison: the ranks have "
        "different numbers of collectives with these names.",
    )


def _absent(found: Job) -> tuple[str, ...]:
    if not found.absent:
        return ()
    n = len(found.ranks) + len(found.absent)
    is_or_are = "rank" if len(found.absent) == 1 else "ranks"
    return (
        f"The job has {n:,} ranks, but no file of {is_or_are} "
        f"{profile_tables.spelt(found.absent)}. If the late rank is among those, the others' "
        "waiting is not told from communication.",
    )


def _headline(found: Profile) -> str:
    total = found.breakdown.together
    if not total.span_ns:
        where = ": profile at least one whole step, with the activities CPU and CUDA"
        return wording(found).nothing + (
            where if found.selection is None else f" in {found.selection}"
        )
    busy = format_cell(total.busy_ns / total.span_ns, "share")
    said = f"{wording(found).busy} {busy} of {_span(found)}"
    if found.selection is not None:
        return f"{found.selection}: {said}"
    if found.idle is None:
        return said
    cause, worst_ns = max(found.idle.together.by_cause_ns.items(), key=lambda each: each[1])
    if worst_ns < LEAST_CAUSE * total.span_ns:
        return said
    share = format_cell(worst_ns / total.span_ns, "share")
    return f"{said}; largest idle cause: {IDLE_CAUSES[cause]}, {share} of the span"


def _span(found: Profile) -> str:
    """The marked steps with the mean duration on one device; without marks the whole span."""
    total, n = found.breakdown.together, found.n_steps
    if n is None or found.selection is not None:
        return format_cell(total.span_ns * profile_work.NS, "s")
    each = format_cell(total.span_ns * profile_work.NS / n / len(found.breakdown.devices), "s")
    return f"a step of {each}" if n == 1 else f"{n:,} steps of {each}"


def _opening(found: Profile) -> tuple[Block, ...]:
    total = found.breakdown.together
    n_kernels = total.n_compute + total.n_communication
    moves = "" if found.is_of_host else f", {total.n_copies:,} copies, {total.n_sets:,} sets"
    n_devices = len(found.breakdown.devices)
    several = f"{n_devices}: times are sums over them; findings give the mean GPU's"
    facts = {
        "device": ", ".join(found.devices) or None,
        "GPUs": several if n_devices > 1 else None,
        "rank": None if found.rank is None else f"{found.rank} of {found.world_size}",
        "steps": None if found.n_steps is None else f"{found.n_steps:,}",
        "work": f"{n_kernels:,} {wording(found).units}{moves}",
    }
    return (
        Facts(facts=tuple(Fact(name=name, value=text) for name, text in facts.items() if text)),
    )


def _missing(found: Profile) -> tuple[Block, ...]:
    return tuple(Note(text=each) for each in found.incomplete)


def _conventions(found: Profile) -> tuple[Block, ...]:
    units, unnamed = wording(found).units, format_cell(found.unnamed_share, "share")
    return (
        Items(
            texts=(
                wording(found).conventions,
                *found.evidence,
                f"{units.capitalize()} that no rule names take {unnamed} of the time of {units}.",
            )
        ),
    )


def _filled(table: Table) -> tuple[Block, ...]:
    return (TableBlock(table=table, sortable=True),) if table.rows else ()
