"""Study `checkpointing`: what recomputing activations saves in memory, costs in time, lets fit.

Nothing recomputed, every √L-th block's input kept, every block's, and selectively (the results of
matmuls and attention kept): peak memory, step time and recomputed FLOPs of a train step; then the
largest batch and the longest sequence that fit a memory limit.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from statistics import mean

from peakward.prediction.flops import recomputed_flops, step_flops
from peakward.records.case import Checkpointing, ModelCase
from peakward.records.memory import MemoryPhase
from peakward.records.study import Conclusion, Table
from peakward.studies import readings as read
from peakward.studies import values
from peakward.studies.cases import place, with_levers
from peakward.studies.checkpointing import largest
from peakward.studies.checkpointing.largest import MODES, Found, case, precision
from peakward.studies.claims import Sentence, known, least, most, pairs, speeds
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.fits import limit_notes
from peakward.studies.peaks import phase_of, predicted_peak
from peakward.studies.readings import ratio
from peakward.studies.setting import Setting
from peakward.studies.values import MEDIAN, PEAK, SIZE, STATUS, VERDICT, Value, plot, table, text

PHASES: dict[MemoryPhase | None, str] = {
    "backward": "in the backward pass",
    "forward": "in the forward pass",
    "optimizer": "in the optimizer's step, which holds no activations",
    "build": "in the building of the model",
    None: "in a phase that is not known",
}
"""Where the peak of keeping everything lies, as a sentence says it."""
Step = Point[ModelCase]


def points(setting: Setting) -> Iterator[Step]:
    """Size × sequence × mode, each held against keeping everything."""
    protocol, grid = setting.protocol(phases=False), setting.grid
    for shape, seq_len, mode in product(grid.models, grid.seq_lens, MODES):
        step = case(setting, shape, seq_len, mode)
        base = (with_levers(step, checkpointing="none"), protocol)
        yield Point(case=step, protocol=protocol, name=mode, base=base)


def recomputed(row: Row[Step]) -> float:
    """What the mode computes again, in FLOPs a step."""
    return recomputed_flops(row.point.case)


def recomputed_share(row: Row[Step]) -> float | None:
    """Of the model FLOPs of the step."""
    return ratio(recomputed(row), step_flops(row.point.case))


def by_mode(view: View[Step]) -> Iterator[tuple[Checkpointing, list[Row[Step]]]]:
    """The rows of each mode."""
    for mode in MODES:
        yield mode, [row for row in view.rows if row.point.case.configuration.checkpointing == mode]


def costs(view: View[Step]) -> Iterator[Conclusion]:
    """What each mode saves, by where keeping everything has its peak; what it costs and computes again;
    over the cases that ran with and without."""
    for mode, rows in by_mode(view):
        if mode != "none":
            yield from _memory(mode, rows)
            yield from speeds(rows, mode, "none")
            yield from _recomputed(mode, [row for row in rows if row.time and row.speed])


def _memory(mode: Checkpointing, rows: Sequence[Row[Step]]) -> Iterator[Conclusion]:
    """No mean over phases: recomputation frees activations, and lowers no peak that has none."""
    told, texts = Sentence(), []
    for phase, where in PHASES.items():
        of_phase = [row for row in rows if phase_of(row.base) == phase]
        if shares := known(of_phase, lambda row: row.peak_share):
            ends = [least(shares), most(shares)] if len(shares) > 1 else shares
            named = [
                f"{told(f'{end} share, {phase}', share, 'share', *row.both)} ({place(row.point.case)})"
                for end, (share, row) in zip(("least", "largest"), ends, strict=False)
            ]
            texts.append(f"{' to '.join(named)}, where that peak lies {where}")
    if texts:
        yield from told.end(f"{mode} holds of none's peak memory: {'; '.join(texts)}.")


def _recomputed(mode: Checkpointing, rows: Sequence[Row[Step]]) -> Iterator[Conclusion]:
    if rows:
        told, share = Sentence(), mean(recomputed_share(row) or 0.0 for row in rows)
        part = told("recomputed FLOPs", share, "share", *pairs(rows))
        yield from told.end(f"{mode} recomputes {part} of the model's FLOPs.")


def only_fits(view: View[Step]) -> Iterator[Conclusion]:
    """Cases that run out of memory with everything kept and run with some of it recomputed."""
    for mode, rows in by_mode(view):
        rescued = [row for row in rows if (read.status(row.base), row.status) == ("oom", "ok")]
        if rescued:
            told = Sentence()
            n = told.count("cases only with it", len(rescued), pairs(rescued))
            cases = "case" if len(rescued) == 1 else "cases"
            yield from told.end(f"{mode} runs {n} {cases} for which none runs out of memory.")


def found(view: View[Step]) -> tuple[Found, ...]:
    """The searches, as far as the probes on record take them."""
    return largest.found(view.readings, view.setting)


def what(each: Found) -> str:
    """What grew: "batch at sequence 512", "sequence at batch 4"."""
    other = "sequence" if each.search.axis == "batch" else "batch"
    return f"{each.search.axis} at {other} {each.fixed}"


def without_mode(each: Found) -> tuple[object, ...]:
    """What searches have in common that differ in what is recomputed alone."""
    return each.search.shape, each.search.axis, each.search.limit_bytes


def largest_claims(view: View[Step]) -> Iterator[Conclusion]:
    """How far each mode goes under one limit, beside keeping everything.

    Of searches that came to their end: where a probe timed out or crashed, the largest is unknown.
    """
    ended = [each for each in found(view) if each.bracket.stopped is None]
    for base, *others in values.groups(ended, without_mode):
        fit = [each for each in others if each.bracket.fits]
        if base.search.mode == "none" and fit:
            yield from _largest(base, fit)


def _largest(base: Found, others: Sequence[Found]) -> Iterator[Conclusion]:
    told, texts = Sentence(), []
    limit = told("memory limit", base.search.limit_bytes, "bytes", *base.bracket.proofs)
    for each in others:
        mode, text = each.search.mode, _ends(each, told)
        if base.bracket.too_large is not None and base.bracket.fits:
            # What fits over what does not fit with everything kept: the true factor is larger.
            factor = each.bracket.fits / base.bracket.too_large
            proofs = (*base.bracket.proofs, *each.bracket.proofs)
            text += f", {told(f'{mode} over none, at least', factor, 'ratio', *proofs)} or more"
        texts.append(f"{mode} {text}")
    plain = _ends(base, told) if base.bracket.fits else "none"
    yield from told.end(
        f"Under {limit} the largest {what(base)} of {base.search.shape.name}: "
        f"{'; '.join((f'everything kept {plain}', *texts))}."
    )


def _ends(each: Found, told: Sentence) -> str:
    """What fits and what does not: the search ends with a gap between them."""
    mode, bracket = each.search.mode, each.bracket
    text = f"at least {told(f'fits with {mode}', bracket.fits, 'count', *bracket.proofs)}"
    if bracket.too_large is None:
        return text
    over = told(f"does not fit with {mode}", bracket.too_large, "count", *bracket.proofs)
    return f"{text} ({over} does not fit)"


def largest_table(view: View[Step]) -> Iterator[Table]:
    """The largest batch and sequence that fit each limit."""
    searched = found(view)
    none = {
        without_mode(each): each.bracket.fits for each in searched if each.search.mode == "none"
    }
    yield from table(
        "The largest batch and the longest sequence that fit",
        (
            text("model", lambda each: each.search.shape.name),
            Value("limit", "bytes", lambda each: each.search.limit_bytes),
            text("largest", what),
            text("checkpointing", lambda each: each.search.mode),
            Value("fits", "count", lambda each: each.bracket.fits or None),
            Value("does not fit", "count", lambda each: each.bracket.too_large),
            Value(
                "over none's",
                "ratio",
                lambda each: ratio(each.bracket.fits or None, none.get(without_mode(each))),
            ),
            text(
                "search",
                lambda each: (
                    f"ended by: {each.bracket.stopped}" if each.bracket.stopped else "complete"
                ),
            ),
        ),
        lambda _view: searched,
        note="Two whole train steps ran at the value that fits and did not at the one that does not.",
    )(view)


STUDY = Study(
    title="What does recomputation save, cost, and let fit?",
    points=points,
    search=largest.gather,
    tables=(
        table(
            "Memory and time by what is recomputed",
            (
                *SIZE,
                text("checkpointing", lambda row: row.name),
                STATUS,
                PEAK,
                Value("of none's", "share", lambda row: row.peak_share),
                text("peak lies in", lambda row: phase_of(row.measurement)),
                Value("predicted peak", "bytes", lambda row: predicted_peak(row.point.case)),
                MEDIAN,
                Value("over none's", "ratio", lambda row: row.over_base),
                Value("recomputed", "flops", recomputed),
                Value("of the model's FLOPs", "share", recomputed_share),
                VERDICT,
            ),
            note="The phase of the peak is that of the predicted one, told where the two are within 5%. On a "
            "CPU what is measured is the process, whose peak is not predicted.",
        ),
        largest_table,
    ),
    plots=(
        plot(
            "Peak memory against step time",
            Value("step time", "s", lambda row: row.median_s),
            PEAK,
            lambda row: place(row.point.case),
            lambda view: sorted(view.rows, key=lambda row: row.median_s or 0.0),
            names=lambda row: row.name,
            log="xy",
        ),
    ),
    claims=(costs, only_fits, largest_claims),
    notes=lambda view: (
        f"Train steps in {precision(view.setting)} with torch's scaled_dot_product_attention.",
        *limit_notes(view.setting, largest.SMALL_LIMITS_BYTES),
    ),
)
