"""Study `throughput`: what lower precision gains in speed, and what it lets train.

First tokens/s of each precision, forward and train step, by size and sequence length. Then what
trains under a memory limit, in each precision, and with checkpointing, with flash attention
(torch's SDPA) and with both.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from peakward.prediction.parameters import n_parameters
from peakward.records.case import ModelCase, Pass, Precision
from peakward.records.study import Conclusion, Table
from peakward.report.format import format_cell
from peakward.studies import values
from peakward.studies.cases import model_case, place, with_levers
from peakward.studies.claims import Sentence, gains, growth, sources
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.fits import fit, limit_notes, limits, search
from peakward.studies.peaks import (
    CATEGORIES,
    OTHER,
    peak_categories,
    peak_phase,
    phase_of,
    predicted_peak,
)
from peakward.studies.readings import ratio
from peakward.studies.setting import Setting
from peakward.studies.values import SIZE, Value, plot, table, text

BASE: Precision = "fp32"
PRECISIONS: tuple[Precision, ...] = (BASE, "bf16-mixed", "bf16")
PASSES: tuple[Pass, ...] = ("forward", "train_step")
ADDED: dict[str, dict[str, Any]] = {
    "checkpointing": {"checkpointing": "every-block"},
    "flash attention": {"attention": "sdpa"},
    "checkpointing + flash attention": {"checkpointing": "every-block", "attention": "sdpa"},
}
"""`sdpa` is torch's scaled_dot_product_attention: flash attention where the precision allows it."""


class Way(Point[ModelCase], frozen=True, kw_only=True):
    """A workload in one precision, held against fp32; or a way to train a size, named by its precision and
    what saves memory, held against its precision alone."""

    trains: bool = False
    """Whether it is a way to train, of which is asked which limits it fits."""
    added: str | None = None

    @property
    def precision(self) -> Precision:
        """The case's."""
        return self.case.configuration.precision


def precisions(setting: Setting) -> tuple[Precision, ...]:
    """Those of the scope, fp32 always first: it is what the others are held against."""
    return tuple(dict.fromkeys((BASE, *(setting.scope.precisions or PRECISIONS))))


def workloads(setting: Setting) -> Iterator[ModelCase]:
    """Size × pass × sequence × precision, whether or not this machine can run it."""
    grid = setting.grid
    for shape, pass_, seq_len, precision in product(
        grid.models, PASSES, grid.seq_lens, precisions(setting)
    ):
        yield model_case(
            shape, grid.batch_size, seq_len, pass_, setting.device, precision=precision
        )


def points(setting: Setting) -> Iterator[Way]:
    """Size × pass × sequence × precision; then each precision alone, by size, and the lowest one (in `full`
    each lower one) with additions, once without a limit: that tells which limits it fits for certain."""
    protocol, grid = setting.protocol(phases=False), setting.grid
    for case in workloads(setting):
        if setting.obstacle(case) is None:
            yield Way(
                case=case, protocol=protocol, base=(with_levers(case, precision=BASE), protocol)
            )
    lower = [each for each in precisions(setting) if each not in (BASE, "tf32")]
    helped = lower if setting.scope.name == "full" else lower[-1:]
    for shape, precision in product(grid.models, precisions(setting)):
        longest, pass_ = max(grid.seq_lens), PASSES[-1]
        case = model_case(
            shape, grid.batch_size, longest, pass_, setting.device, precision=precision
        )
        additions = ADDED if precision in helped else {}
        for added in (None, *additions):
            levers = ADDED[added] if added else {}
            changed = with_levers(case, **levers)
            if setting.obstacle(changed) is None:
                yield Way(
                    case=changed,
                    protocol=protocol,
                    name=f"{precision} + {added}" if added else precision,
                    base=(case, protocol),
                    trains=True,
                    added=added,
                )


def trained(setting: Setting) -> Iterator[tuple[Way]]:
    """The ways to train, each by itself."""
    return ((way,) for way in points(setting) if way.trains)


def speeds(view: View[Way]) -> list[Row[Way]]:
    """The grid of tokens/s."""
    return [row for row in view.rows if not row.point.trains]


def ways(view: View[Way]) -> list[Row[Way]]:
    """The ways to train."""
    return [row for row in view.rows if row.point.trains]


def bare(view: View[Way]) -> list[Row[Way]]:
    """The precisions alone as ways to train."""
    return [row for row in ways(view) if row.point.added is None]


def at_longest(view: View[Way]) -> list[Row[Way]]:
    """The lower precisions of the grid at its longest sequence."""
    longest = max((row.point.case.workload.seq_len for row in speeds(view)), default=0)
    return [
        row
        for row in speeds(view)
        if row.point.precision != BASE and row.point.case.workload.seq_len == longest
    ]


def under_limits(view: View[Way]) -> Iterator[Table]:
    """What trains under each limit, and what it costs."""

    def verdict(limit: int) -> Callable[[Row[Way]], str]:
        def of(row: Row[Way]) -> str:
            found = fit(row.point, limit, view.readings, view.setting)
            return "not run" if found is None else found.verdict

        return of

    yield from table(
        "What trains under a memory limit",
        (
            *SIZE,
            text("precision and levers", lambda row: row.name),
            *(text(format_cell(each, "bytes"), verdict(each)) for each in limits(view.setting)),
            Value(
                "peak, no limit",
                "bytes",
                lambda row: row.peak_bytes if row.status == "ok" else row.status,
            ),
            Value("median, no limit", "s", lambda row: row.median_s),
            Value(
                "time over its precision alone",
                "ratio",
                lambda row: row.time_ratio if row.point.added else None,
            ),
        ),
        ways,
    )(view)


def category(name: str) -> Value:
    """What the predicted peak holds for a purpose."""

    def of(row: Row[Way]) -> int | None:
        held = peak_categories(row.point.case)
        return None if held is None else held[name]

    return Value(name, "bytes", of)


def speed(view: View[Way]) -> Iterator[Conclusion]:
    """What each lower precision gains in each pass."""
    rows = [row for row in speeds(view) if row.point.precision != BASE]
    by_pass = {
        pass_: [row for row in rows if row.point.case.workload.pass_ == pass_] for pass_ in PASSES
    }
    for pass_, of_pass in by_pass.items():
        for group in values.groups(of_pass, lambda row: row.point.precision):
            yield from gains(group, f"{group[0].point.precision} {pass_}", BASE)


def seq_len(row: Row[Way]) -> int:
    """The workload's."""
    return row.point.case.workload.seq_len


def grows(view: View[Way]) -> Iterator[Conclusion]:
    """The exponent of the train step's time in the sequence length, of the largest size that ran."""
    ran = [row for row in speeds(view) if row.point.case.workload.pass_ == PASSES[-1] and row.time]
    for group in values.groups(ran, lambda row: row.point.precision):
        largest = max(n_parameters(row.point.case.model) for row in group)
        found = growth(
            (row for row in group if n_parameters(row.point.case.model) == largest), seq_len
        )
        if found is None:
            continue
        power, timed = found
        (low, first), (high, last) = timed[0], timed[-1]
        told, behind = Sentence(), sources(row for _, row in timed)
        yield from told.end(
            f"In {last.point.precision} the train step of {last.point.case.model.name} grows as the sequence "
            f"length to the power {told('exponent', power.estimate, 'count', *behind)} "
            f"({told.range('exponent', power, 'count', *behind)} by the intervals of the times), fitted from "
            f"{told('shortest sequence', low, 'count', first.measurement)} "
            f"({told('time at the shortest', first.median_s, 's', first.measurement)}) to "
            f"{told('longest sequence', high, 'count', last.measurement)} "
            f"({told('time at the longest', last.median_s, 's', last.measurement)})."
        )


def boundaries(view: View[Way]) -> Iterator[Conclusion]:
    """Under each limit, how many sizes each precision trains, and which only a lower one does."""
    for limit in limits(view.setting):
        told, texts, proofs = Sentence(), [], []
        in_base: Mapping[str, str] = {}
        for group in values.groups(bare(view), lambda row: row.point.precision):
            found = {
                row.point.case.model.name: each
                for row in group
                if (each := fit(row.point, limit, view.readings, view.setting)) is not None
                and each.verdict in ("fits", "oom")
            }
            verdicts = {name: each.verdict for name, each in found.items()}
            precision = group[0].point.precision
            if precision == BASE:
                in_base = verdicts
            if not found:
                continue
            behind = [each.proof for each in found.values()]
            proofs += behind
            fits = [name for name, verdict in verdicts.items() if verdict == "fits"]
            only = [name for name in fits if in_base.get(name) == "oom"]
            n = told.count(f"sizes in {precision}", len(fits), behind)
            of = told.count("sizes known", len(found), behind)
            texts.append(
                f"{precision} {n} of {of}" + (f" ({', '.join(only)} not in {BASE})" if only else "")
            )
        if texts:
            under = told("memory limit", limit, "bytes", *proofs)
            yield from told.end(f"Sizes that train under {under}: {'; '.join(texts)}.")


def lower_precisions(view: View[Way]) -> Iterator[Conclusion]:
    """What each lower precision takes of fp32's peak memory and for what, and how many more sizes it
    trains: mixed precision keeps the states in fp32, and they are what it does not shrink."""
    base = {row.point.case.model: row for row in bare(view) if row.point.precision == BASE}
    lower = [
        row for row in bare(view) if row.point.precision != BASE and row.point.case.model in base
    ]
    for group in values.groups(lower, lambda row: row.point.precision):
        both = [(row, base[row.point.case.model]) for row in group]
        yield from _peaks(both)
        yield from _moved(both, view)


def _peaks(both: Sequence[tuple[Row[Way], Row[Way]]]) -> Iterator[Conclusion]:
    """By size where both ran without a limit; of the largest of them, by category."""
    ran = [(lower, base) for lower, base in both if lower.peak_bytes and base.peak_bytes]
    if not ran:
        return
    told, texts = Sentence(), []
    for lower, base in ran:
        where, behind = place(lower.point.case), (lower.measurement, base.measurement)
        own = told(f"peak, {where}", lower.peak_bytes, "bytes", lower.measurement)
        full = told(f"{BASE}'s peak, {where}", base.peak_bytes, "bytes", base.measurement)
        share = ratio(lower.peak_bytes, base.peak_bytes)
        part = told(f"peak over {BASE}'s, {where}", share, "share", *behind)
        texts.append(f"{where} {own} against {full} ({part})")
    yield from told.end(f"Peak memory of {ran[0][0].name} against {BASE}: {'; '.join(texts)}.")
    yield from _by_category(*max(ran, key=lambda each: n_parameters(each[0].point.case.model)))


def _by_category(lower: Row[Way], base: Row[Way]) -> Iterator[Conclusion]:
    """Of predictions, where they are of the measured peaks."""
    own, full = peak_categories(lower.point.case), peak_categories(base.point.case)
    if own is None or full is None:
        return
    if None in (phase_of(lower.measurement), phase_of(base.measurement)):
        return
    told, texts = Sentence(), []
    for name in own:
        if own[name] or full[name]:
            held = told(f"{name}, {lower.name}", own[name], "bytes", lower.measurement)
            beside = told(f"{name}, {base.name}", full[name], "bytes", base.measurement)
            texts.append(f"{name} {held} against {beside}")
    yield from told.end(
        f"At its peak {place(lower.point.case)} holds in {lower.name} against {BASE}, as predicted by "
        f"category: {'; '.join(texts)}."
    )


def _moved(both: Sequence[tuple[Row[Way], Row[Way]]], view: View[Way]) -> Iterator[Conclusion]:
    """Over the pairs of a size and a limit of which both precisions are known."""
    known = [
        (own, full)
        for lower, base in both
        for limit in limits(view.setting)
        if (own := fit(lower.point, limit, view.readings, view.setting)) is not None
        and (full := fit(base.point, limit, view.readings, view.setting)) is not None
        and {own.verdict, full.verdict} <= {"fits", "oom"}
    ]
    if not known:
        return
    told, proofs, precision = (
        Sentence(),
        [each.proof for of in known for each in of],
        both[0][0].name,
    )
    gained, lost = (
        sum((own.verdict, full.verdict) == verdicts for own, full in known)
        for verdicts in (("fits", "oom"), ("oom", "fits"))
    )
    n = told.count("pairs of a size and a limit", len(known), proofs)
    yield from told.end(
        f"Of {n} {'pair' if len(known) == 1 else 'pairs'} of a size and a memory limit, {precision} trains "
        f"{told.count(f'train in {precision} alone', gained, proofs)} that {BASE} does not, and {BASE} "
        f"{told.count(f'train in {BASE} alone', lost, proofs)} that {precision} does not."
    )


def additions(view: View[Way]) -> Iterator[Conclusion]:
    """What each memory-saving lever lets train that its precision alone cannot, and what it costs."""
    alone = {(row.point.case.model, row.point.precision): row for row in bare(view)}
    added = [row for row in ways(view) if row.point.added]
    for of_precision in values.groups(added, lambda row: row.point.precision):
        for group in values.groups(of_precision, lambda row: row.name):
            for limit in limits(view.setting):
                yield from _unlocked(group, alone, limit, view)
            yield from _price(group)


def _unlocked(
    group: Sequence[Row[Way]], alone: dict[Any, Row[Way]], limit: int, view: View[Way]
) -> Iterator[Conclusion]:
    models, proofs = [], []
    for row in group:
        plain = alone.get((row.point.case.model, row.point.precision))
        without, own = (
            None if each is None else fit(each.point, limit, view.readings, view.setting)
            for each in (plain, row)
        )
        if without and own and (without.verdict, own.verdict) == ("oom", "fits"):
            models.append(row.point.case.model.name)
            proofs += [without.proof, own.proof]
    if models:
        told, way = Sentence(), group[0]
        yield from told.end(
            f"Under {told('memory limit', limit, 'bytes', *proofs)}, {way.name} trains {', '.join(models)}, "
            f"which {way.point.precision} alone cannot."
        )


def _price(group: Sequence[Row[Way]]) -> Iterator[Conclusion]:
    """Peak memory and time over the precision's own, by size, where both ran without a limit."""
    told, texts = Sentence(), []
    for row in group:
        share, slower = row.peak_share, row.time_ratio
        if share is not None and slower is not None:
            model = row.point.case.model.name
            peak = told(f"peak memory, {model}", share, "share", row.measurement, row.base)
            times = told(f"time, {model}", slower, "ratio", row.measurement, row.base)
            ends = told.range(f"time, {model}", row.over_base, "ratio", row.measurement, row.base)
            texts.append(f"{peak} of the peak memory in {times} ({ends}) the time for {model}")
    if texts:
        way = group[0]
        yield from told.end(f"{way.name} against {way.point.precision} alone: {'; '.join(texts)}.")


def notes(view: View[Way]) -> tuple[str, ...]:
    """What was left out, and what fitting means."""
    return (
        *view.setting.refusals(workloads(view.setting)),
        *limit_notes(view.setting),
        "A way to train fits a limit where two whole steps run under it. Where a measurement "
        "settles a limit (it fits a smaller one, or ran out under a larger one), it is not run.",
        "Flash attention stands for torch's scaled_dot_product_attention, which takes its flash "
        "kernel where precision and device allow it.",
    )


def over_base(view: View[Way]) -> Iterator[Any]:
    """Speed over fp32 by size, at the longest sequence."""
    longest = max((seq_len(row) for row in speeds(view)), default=0)
    yield from plot(
        f"Speed over {BASE} by size, sequence {longest}",
        values.PARAMETERS,
        Value(f"speed over {BASE}", "ratio", lambda row: row.factor),
        lambda row: f"{row.point.precision}, {row.point.case.workload.pass_}",
        at_longest,
        names=lambda row: row.point.case.model.name,
        log="x",
    )(view)


STUDY = Study(
    title="What does lower precision gain, and what does it let train?",
    points=points,
    search=search(trained),
    tables=(
        table(
            "Throughput by precision",
            (
                *SIZE,
                values.PRECISION,
                values.STATUS,
                *values.INTERVAL,
                values.TOKENS_PER_S,
                values.FLOPS_PER_S,
                Value(f"speed over {BASE}", "ratio", lambda row: row.factor),
                values.PEAK,
                values.VERDICT,
            ),
            speeds,
        ),
        under_limits,
        table(
            "What the peak memory is held for: predicted",
            (
                *SIZE,
                text("precision and levers", lambda row: row.name),
                text("peak lies in", lambda row: peak_phase(row.point.case)),
                Value("predicted peak", "bytes", lambda row: predicted_peak(row.point.case)),
                *(category(name) for name in (*CATEGORIES, OTHER)),
            ),
            ways,
            note="By the closed form; the measured peaks are in the table before. Pure bf16 keeps "
            "parameters, "
            "gradients and the optimizer's state in bf16; mixed precision keeps them in fp32 and holds casts "
            "of the weights beside them.",
        ),
    ),
    plots=(
        over_base,
        plot(
            "Time of a train step by sequence length",
            values.SEQ_LEN,
            Value("step time", "s", lambda row: row.time),
            lambda row: f"{row.point.case.model.name}, {row.point.precision}",
            lambda view: (
                row for row in speeds(view) if row.point.case.workload.pass_ == PASSES[-1]
            ),
            log="xy",
        ),
    ),
    claims=(speed, grows, boundaries, lower_precisions, additions),
    notes=notes,
)
