"""Steps whose sequence length changes, against padding them to one length."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

from peakward.records.case import ModelCase, Padding, Pass
from peakward.records.measurement import CompileReport, Interval
from peakward.records.study import Conclusion
from peakward.stats.pairs import median_ratio
from peakward.stats.summary import mean_interval
from peakward.studies.cases import model_case, with_levers, with_work
from peakward.studies.claims import Sentence
from peakward.studies.engine import Point, Row, View
from peakward.studies.readings import distinct, ratio, tokens_per_s
from peakward.studies.setting import Setting

EIGHTHS = (8, 3, 6, 1, 5, 2, 7, 4)
"""The lengths of a cycle, in eighths of the longest: all from short to long, out of order."""
N_CYCLES_WARMUP = 2
"""torch.compile recompiles with dynamic sizes at the second length, and graphs are captured at
each new one: the first cycle has them all, the second shows that they are over."""
N_CYCLES_TIMED = 4
ENGINES: dict[str, dict[str, Any]] = {
    "eager": {},
    "compile default": {"compile": "default"},
    "cuda-graphs": {"cuda_graphs": True},
}
PADDINGS: dict[str, Padding] = {"changing": "none", "padded": "to-seq-len"}


class Varied(Point[ModelCase], frozen=True, kw_only=True):
    """An engine, which is its name, under changing lengths, padded or not."""

    lengths: str
    """changing or padded."""

    @property
    def compiles(self) -> bool:
        """Whether something is compiled or captured as it starts."""
        settings = self.case.configuration
        return settings.compile != "none" or settings.cuda_graphs


VariedRow = Row[Varied]


def points(setting: Setting, longest: int) -> Iterator[Varied]:
    """Every engine that runs here × padding, on the smallest size, where overheads weigh most."""
    n_steps, grid = N_CYCLES_TIMED * len(EIGHTHS), setting.grid
    # Whole cycles, so that every length counts alike.
    protocol = setting.protocol(
        warmup_steps=N_CYCLES_WARMUP * len(EIGHTHS),
        min_steps=n_steps,
        max_steps=n_steps,
        phases=False,
        fresh_process=True,
    )
    # A CPU compiles a train step for a minute; the question is the same in a forward.
    pass_: Pass = "train_step" if setting.device == "cuda" else "forward"
    plain = model_case(grid.models[0], grid.batch_size, longest, pass_, setting.device)
    seq_lens = tuple(max(1, longest * eighths // 8) for eighths in EIGHTHS)
    for engine, levers in ENGINES.items():
        for lengths, padding in PADDINGS.items():
            case = with_work(plain, varying_seq_lens=seq_lens, padding=padding)
            case = with_levers(case, **levers)
            if setting.obstacle(case) is None:
                yield Varied(case=case, protocol=protocol, name=engine, lengths=lengths)


def rows(view: View[Any]) -> list[VariedRow]:
    """The steps of changing lengths, of a study that has them among others."""
    return [cast(VariedRow, row) for row in view.rows if isinstance(row.point, Varied)]


def report(row: Row[Any]) -> CompileReport | None:
    """What torch.compile did; None where nothing is compiled, or the case did not end `ok`."""
    made = row.measurement
    return made.compile if made is not None and made.status == "ok" else None


def start_s(row: VariedRow) -> float | None:
    """What a fresh process takes before it is steady: its warm-up, whole cycles, beyond what as many
    steady cycles take; compilations and captures are in it. None unless the case ended `ok`."""
    made = row.measurement
    if made is None or made.status != "ok" or made.summary is None or not made.runs:
        return None
    warmup = made.runs[0].warmup_s
    return max(0.0, sum(warmup) - len(warmup) * made.summary.mean_s)


def mean_s(row: VariedRow) -> Interval | None:
    """The mean step, whose interval is of whole cycles: the lengths within one differ, and are known."""
    made = row.measurement
    if made is None or made.status != "ok" or not made.runs:
        return None
    return mean_interval(made.runs[0].steps_s, n_batches=N_CYCLES_TIMED)


def steps_to_pay(dear: VariedRow, cheap: VariedRow) -> float | None:
    """Steps after which the one that takes longer to start has made up for it; 0 where it does not take
    longer, infinite where its mean step is not measurably shorter. None where either is not known."""
    first_s, second_s = start_s(dear), start_s(cheap)
    dear_s, cheap_s = mean_s(dear), mean_s(cheap)
    if first_s is None or second_s is None or dear_s is None or cheap_s is None:
        return None
    saved_s = cheap_s.estimate - dear_s.estimate
    if saved_s <= 0 or not distinct(cheap_s, dear_s):
        return math.inf
    return max(0.0, first_s - second_s) / saved_s


def plain_row(found: Sequence[VariedRow]) -> VariedRow | None:
    """Eager steps of changing lengths."""
    return next(
        (row for row in found if (row.name, row.point.lengths) == ("eager", "changing")), None
    )


def claims(view: View[Any]) -> Iterator[Conclusion]:
    """Whether padding to one length beats letting it change, for each engine, what each way takes to
    start, and after how many steps that has paid."""
    found = rows(view)
    plain = plain_row(found)
    for engine in dict.fromkeys(row.name for row in found):
        changing, padded = (row for row in found if row.name == engine)
        yield from _pad_or_not(changing, padded)
        yield from _starts(changing, padded)
        if plain is not None and changing.point.compiles:
            yield from _against_eager((changing, padded), plain)


def _pad_or_not(changing: VariedRow, padded: VariedRow) -> Iterator[Conclusion]:
    told, both = Sentence(), (padded.measurement, changing.measurement)
    rates = tokens_per_s(padded.measurement), tokens_per_s(changing.measurement)
    factor = told("padded over changing", ratio(*rates), "ratio", *both)
    first, second = (
        told(name, rate, "tokens_per_s", source)
        for name, rate, source in zip(("padded", "changing"), rates, both, strict=True)
    )
    found = _rate_ratio(padded, changing)
    ends = told.range("padded over changing", found, "ratio", *both) if found else "no interval"
    yield from told.end(
        f"Under {changing.name}, once it is steady, padding to one length runs at {factor} ({ends}) the "
        f"tokens/s of changing lengths ({first} against {second})."
    )


def _rate_ratio(padded: VariedRow, changing: VariedRow) -> Interval | None:
    """The tokens/s of padded steps over those of changing ones, with the interval of both mean steps."""
    first, second = mean_s(padded), mean_s(changing)
    factor = ratio(tokens_per_s(padded.measurement), tokens_per_s(changing.measurement))
    if first is None or second is None or factor is None or min(first.low, second.low) <= 0:
        return None
    found = median_ratio(first, second)
    scale = factor / found.estimate
    return Interval(
        estimate=factor, low=found.low * scale, high=found.high * scale, level=found.level
    )


def _starts(changing: VariedRow, padded: VariedRow) -> Iterator[Conclusion]:
    """Of what compiles or captures: the start of each way, and when the dearer of them has paid."""
    first_s, second_s = start_s(changing), start_s(padded)
    if not changing.point.compiles or first_s is None or second_s is None:
        return
    told = Sentence()
    texts = [
        f"{told(f'start, {row.point.lengths}', seconds, 's', row.measurement)} with {row.point.lengths} "
        f"lengths{_counts(row, told)}"
        for row, seconds in ((changing, first_s), (padded, second_s))
    ]
    text = f"Under {changing.name} a fresh process takes {' and '.join(texts)} to start"
    dear, cheap = (changing, padded) if first_s > second_s else (padded, changing)
    steps = steps_to_pay(dear, cheap)
    if steps is not None:
        paid = "is never made up for"
        if math.isfinite(steps):
            n = told("steps", math.ceil(steps), "count", dear.measurement, cheap.measurement)
            paid = f"is made up for after {n} steps"
        text += f"; the longer start, with {dear.point.lengths} lengths, {paid}"
    yield from told.end(f"{text}.")


def _counts(row: VariedRow, told: Sentence) -> str:
    """The graphs that were compiled, as far as torch.compile was used."""
    made, lengths = report(row), row.point.lengths
    if made is None:
        return ""
    text = f"{told(f'graphs, {lengths}', made.n_graphs, 'count', row.measurement)} graphs compiled"
    if made.n_recompiles:
        again = told(f"recompilations, {lengths}", made.n_recompiles, "count", row.measurement)
        text += f", {again} of them anew for another length"
    if made.n_cached_graphs:
        quantity = f"graphs from the disk cache, {lengths}"
        cached = told(quantity, made.n_cached_graphs, "count", row.measurement)
        text += f", {cached} taken from the compiler's disk cache"
    return f" ({text})"


def _against_eager(ways: Sequence[VariedRow], plain: VariedRow) -> Iterator[Conclusion]:
    """After how many steps each way has paid for its start, beside eager steps of changing lengths."""
    told, texts = Sentence(), []
    for row in ways:
        steps, lengths = steps_to_pay(row, plain), row.point.lengths
        if steps is None:
            continue
        both = (row.measurement, plain.measurement)
        extra_s = max(0.0, (start_s(row) or 0.0) - (start_s(plain) or 0.0))
        extra = told(f"start beyond eager's, {lengths}", extra_s, "s", *both)
        paid = "never"
        if math.isfinite(steps):
            paid = f"after {told(f'steps, {lengths}', math.ceil(steps), 'count', *both)} steps"
        texts.append(f"with {lengths} lengths {paid} ({extra} more to start)")
    if texts:
        yield from told.end(
            f"Beside eager steps of changing lengths, {ways[0].name} makes up for its longer start: "
            f"{', '.join(texts)}."
        )
