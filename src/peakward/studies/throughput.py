"""Study `throughput`: what lower precision gains in speed, and what it lets train.

First tokens/s of each precision, forward and train step, by size and sequence length. Then what
trains under a memory limit, in each precision, and with checkpointing, with flash attention
(torch's SDPA) and with both.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import msgspec

from peakward.prediction.parameters import n_parameters
from peakward.records.case import ModelCase, Pass, Precision
from peakward.records.study import Conclusion, Table
from peakward.report.format import format_cell
from peakward.studies import peaks, values
from peakward.studies.cases import model_case, place, with_levers
from peakward.studies.claims import Sentence, changed, gains, grows
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.fits import fit, limit_notes, limits, search
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
    what saves memory, held against its precision alone, which is held against fp32."""

    trains: bool = False
    """Whether it is a way to train, of which is asked which limits it fits."""
    against: str = ""
    """The name of the way that it is held against; empty of fp32 itself."""

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
        for added in ("", *additions):
            changed = with_levers(case, **ADDED.get(added, {}))
            if setting.obstacle(changed) is None:
                yield Way(
                    case=changed,
                    protocol=protocol,
                    name=f"{precision} + {added}" if added else precision,
                    base=(case if added else with_levers(case, precision=BASE), protocol),
                    trains=True,
                    against=precision if added else BASE if precision != BASE else "",
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


def at_longest(view: View[Way]) -> list[Row[Way]]:
    """The lower precisions of the grid at its longest sequence."""
    at, rows = longest(view), speeds(view)
    lower = (row for row in rows if row.point.precision != BASE)
    return [row for row in lower if row.point.case.workload.seq_len == at]


def longest(view: View[Way]) -> int:
    """The longest sequence of the grid of tokens/s."""
    return max((row.point.case.workload.seq_len for row in speeds(view)), default=0)


def under_limits(view: View[Way]) -> Iterator[Table]:
    """Yields a table of what trains under each limit, and what it costs."""

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
                lambda row: None if row.point.against in ("", BASE) else row.over_base,
            ),
        ),
        ways,
    )(view)


def category(name: str) -> Value:
    """Returns the value that reads what the predicted peak holds for a purpose."""

    def of(row: Row[Way]) -> int | None:
        held = peaks.peak_categories(row.point.case)
        return None if held is None else held[name]

    return Value(name, "bytes", of)


def speed(view: View[Way]) -> Iterator[Conclusion]:
    """Says what each lower precision gains in each pass."""
    rows = [row for row in speeds(view) if row.point.precision != BASE]
    for pass_ in PASSES:
        of_pass = (row for row in rows if row.point.case.workload.pass_ == pass_)
        for group in values.groups(of_pass, lambda row: row.point.precision):
            yield from gains(group, f"{group[0].point.precision} {pass_}", BASE)


def train_steps(view: View[Way]) -> list[Row[Way]]:
    """The train steps of the grid of tokens/s."""
    return [row for row in speeds(view) if row.point.case.workload.pass_ == PASSES[-1]]


def growth(view: View[Way]) -> Iterator[Conclusion]:
    """The exponent of the train step's time in the sequence length, of the largest size that ran."""
    ran = [row for row in train_steps(view) if row.time]
    for group in values.groups(ran, lambda row: row.point.precision):
        largest = max(group, key=size).point.case.model
        rows = [row for row in group if row.point.case.model == largest]
        what = f"In {group[0].point.precision} the train step of {largest.name}"
        yield from grows(what, rows, values.SEQ_LEN)


def boundaries(view: View[Way]) -> Iterator[Conclusion]:
    """How many sizes each way trains under each limit, and which of them what it is held against does not,
    or the other way round: mixed precision may be the larger, for it keeps the states in fp32."""
    for limit in limits(view.setting):
        told, texts, proofs = Sentence(), [], []
        known: dict[str, dict[str, str]] = {}
        for group in values.groups(ways(view), lambda row: row.name):
            found = {
                row.point.case.model.name: each
                for row in group
                if (each := fit(row.point, limit, view.readings, view.setting)) is not None
                and each.verdict in ("fits", "oom")
            }
            name, against = group[0].name, group[0].point.against
            own = known[name] = {size: each.verdict for size, each in found.items()}
            if found:
                behind = [each.proof for each in found.values()]
                proofs += behind
                fits = sum(verdict == "fits" for verdict in own.values())
                n = told.count(f"sizes in {name}", fits, behind)
                of = told.count(f"sizes known in {name}", len(found), behind)
                texts.append(f"{name} {n} of {of}{_moved(own, known.get(against, {}), against)}")
        if texts:
            under = told("memory limit", limit, "bytes", *proofs)
            yield from told.end(f"Sizes that train under {under}: {'; '.join(texts)}.")


def _moved(own: Mapping[str, str], base: Mapping[str, str], against: str) -> str:
    """The sizes that one of two ways trains alone."""
    pairs = {size: (own[size], base[size]) for size in own if size in base}
    gained = [size for size, found in pairs.items() if found == ("fits", "oom")]
    lost = [size for size, found in pairs.items() if found == ("oom", "fits")]
    texts = [f"{', '.join(gained)} not in {against}"] if gained else []
    texts += [f"{', '.join(lost)} in {against} alone"] if lost else []
    return f" ({'; '.join(texts)})" if texts else ""


def prices(view: View[Way]) -> Iterator[Conclusion]:
    """Says by size how much peak memory and time each way takes of what it is held against, where both ran
    without a limit; and what a lower precision's peak is held for."""
    held = [row for row in ways(view) if row.point.against and row.peak_share and row.over_base]
    for group in values.groups(held, lambda row: row.name):
        told, texts = Sentence(), []
        for row in group:
            model = row.point.case.model.name
            peak = told(f"peak memory, {model}", row.peak_share, "share", *row.both)
            times = told.interval(f"time, {model}", row.over_base, "ratio", *row.both)
            texts.append(f"{peak} of the peak memory in {times} the time for {model}")
        against = group[0].point.against
        yield from told.end(f"{group[0].name} against {against}: {'; '.join(texts)}.")
        if against == BASE:
            yield from _by_category(max(group, key=size))


def _by_category(row: Row[Way]) -> Iterator[Conclusion]:
    """By predictions, where they are of the measured peaks."""
    case = with_levers(row.case, precision=BASE)
    full = msgspec.structs.replace(row, point=msgspec.structs.replace(row.point, case=case))
    held = [category(name) for name in (*peaks.CATEGORIES, peaks.OTHER)]
    figures = [each for each in held if each.number(row) or each.number(full)]
    if None not in map(peaks.phase_of, row.both):
        subject = f"At its peak, as predicted, {place(row.case)} holds in {BASE} and in {row.name}"
        yield from changed(subject, figures, full, row, *row.both)


def size(row: Row[Way]) -> int:
    """The parameters of its model."""
    return n_parameters(row.point.case.model)


def notes(view: View[Way]) -> tuple[str, ...]:
    """Returns notes on what was left out, and what fitting means."""
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
    yield from plot(
        f"Speed over {BASE} by size, sequence {longest(view)}",
        values.PARAMETERS,
        Value(f"speed over {BASE}", "ratio", lambda row: row.speed),
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
                Value(f"speed over {BASE}", "ratio", lambda row: row.speed),
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
                text("peak lies in", lambda row: peaks.peak_phase(row.point.case)),
                Value("predicted peak", "bytes", lambda row: peaks.predicted_peak(row.point.case)),
                *(category(name) for name in (*peaks.CATEGORIES, peaks.OTHER)),
            ),
            ways,
            note="By the closed form; the measured peaks are in the table before. Pure bf16 keeps "
            "parameters, gradients and the optimizer's state in bf16; mixed precision keeps them in fp32 and "
            "holds casts of the weights beside them.",
        ),
    ),
    plots=(
        over_base,
        plot(
            "Time of a train step by sequence length",
            values.SEQ_LEN,
            Value("step time", "s", lambda row: row.time),
            lambda row: f"{row.point.case.model.name}, {row.point.precision}",
            train_steps,
            log="xy",
        ),
    ),
    claims=(speed, growth, boundaries, prices),
    notes=notes,
)
