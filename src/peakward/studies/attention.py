"""Study `attention`: what each way to compute attention takes, and what it keeps for backward.

One head over lengths and head dims: forward, backward and memory held in between; then, under memory
limits, the length at which the naive way ends.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import msgspec

from peakward.records.measurement import Interval
from peakward.records.study import Conclusion, Plot
from peakward.report.format import format_cell
from peakward.studies import values
from peakward.studies.attention_arms import (
    BACKENDS,
    COMPILED,
    COMPILED_TF32,
    FLASH,
    FLASH_HOPPER,
    FLEX,
    NAIVE,
    ON_CPU,
    SDPA,
    Arm,
    Head,
    Precision,
    head,
    studied,
)
from peakward.studies.claims import AnyRow, Ranking, Sentence, growth, longer, rank
from peakward.studies.engine import Row, Study, View
from peakward.studies.fits import Fit, fit, limit_notes, limits, search
from peakward.studies.power_law import exponent
from peakward.studies.readings import processes, verdict
from peakward.studies.setting import Setting
from peakward.studies.values import Value, plot, spread, table, text

BATCH_SIZE = 8
HEAD_DIMS = {"small": (64,), "corners": (16, 128), "full": (16, 32, 64, 128)}
SEQ_LENS = {
    "small": (128, 512, 1024),
    "corners": (256, 4096, 16384),
    "full": (256, 1024, 4096, 8192, 16384),
}
"""Three at least, for an exponent."""
SMALL_LIMITS_BYTES = (384 * 2**20,)
"""Of the whole process on a CPU, of which torch takes up to 300 MiB: 8 × 512² in fp32 takes 8 MiB a
matrix and fits, 8 × 1024² takes 32 and does not."""
HeadRow = Row[Head]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """An arm at one size, forward and backward."""

    forward: HeadRow
    backward: HeadRow

    @property
    def name(self) -> str:
        """The arm's."""
        return self.forward.name

    @property
    def arm(self) -> Arm:
        """The way to compute it."""
        return self.forward.point.arm

    @property
    def precision(self) -> Precision:
        """Of the inputs."""
        return self.forward.point.precision

    @property
    def head_dim(self) -> int:
        """Of the case."""
        return self.forward.point.case.head_dim

    @property
    def seq_len(self) -> int:
        """Of the case."""
        return self.forward.point.case.seq_len

    @property
    def rows(self) -> tuple[HeadRow, HeadRow]:
        """Both passes."""
        return self.forward, self.backward

    @property
    def held_bytes(self) -> int | None:
        """For backward; None where that did not run."""
        found = self.backward.measurement
        if found is None or found.status != "ok" or found.memory is None:
            return None
        return found.memory.held_for_backward_bytes

    @property
    def matrix_share(self) -> float | None:
        """The share of what is held that is the probability matrix of all heads: the softmax's own in fp32,
        and where the values are narrower the copy that it multiplies with them.

        None unless this is naive attention, op by op: no record says what a compiler keeps of the formula.
        """
        item = 4 + (2 if self.precision == "bf16" else 0)
        matrix = self.backward.point.case.batch_size * self.seq_len**2 * item
        held = self.held_bytes
        return None if self.arm != NAIVE or held is None or held < matrix else matrix / held


def arms(precision: Precision, setting: Setting) -> tuple[Arm, ...]:
    """All ways, in the order of the tables; on a CPU those that `ON_CPU` names."""
    if setting.device == "cpu":
        return ON_CPU
    tf32 = (COMPILED_TF32,) if precision == "fp32" else ()
    return (NAIVE, COMPILED, *tf32, SDPA, *BACKENDS, FLEX, FLASH, FLASH_HOPPER)


def points(setting: Setting) -> Iterator[Head]:
    """Precision × head dim × length × way to compute it, forward and backward."""
    scope = setting.scope
    sizes = product(HEAD_DIMS[scope.name], scope.seq_lens or SEQ_LENS[scope.name])
    for precision, (head_dim, seq_len) in product(studied(setting), tuple(sizes)):
        for arm in arms(precision, setting):
            for pass_ in ("forward", "backward"):
                yield head(
                    arm,
                    precision,
                    pass_,
                    setting,
                    batch_size=scope.batch_size or BATCH_SIZE,
                    seq_len=seq_len,
                    head_dim=head_dim,
                )


def cells(view: View[Head]) -> tuple[Cell, ...]:
    """The grid, forward beside backward."""
    pairs = zip(view.rows[::2], view.rows[1::2], strict=True)
    return tuple(Cell(forward=forward, backward=backward) for forward, backward in pairs)


def place(cell: Cell) -> str:
    """For a title or a sentence: "fp32, head dim 64"."""
    return f"{cell.precision}, head dim {cell.head_dim}"


def curves(found: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Cells that differ in their length alone, the shortest first."""
    by_length = sorted(found, key=lambda each: each.seq_len)
    return values.groups(by_length, lambda cell: (place(cell), cell.name))


def seq_len(row: AnyRow) -> int:
    """Of the case."""
    length: int = row.point.case.seq_len
    return length


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Exponents of one arm over the lengths at which it ran; None where fewer than three did."""

    curve: tuple[Cell, ...]
    """The shortest length first."""
    forward: Interval | None
    backward: Interval | None
    held: float | None

    @property
    def last(self) -> Cell:
        """The longest of the curve."""
        return self.curve[-1]


def grown(view: View[Head]) -> Iterator[Growth]:
    """Of every curve of which anything is known."""
    for curve in curves(cells(view)):
        held = [(cell.seq_len, cell.held_bytes) for cell in curve if cell.held_bytes]
        forward, backward = (
            growth(rows, seq_len) for rows in zip(*(cell.rows for cell in curve), strict=True)
        )
        power = exponent([at for at, _ in held], [n_bytes for _, n_bytes in held])
        if forward or backward or power:
            yield Growth(
                curve=curve,
                forward=forward and forward[0],
                backward=backward and backward[0],
                held=power,
            )


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Up to which length naive attention runs forward and backward under a limit."""

    first: Cell
    limit_bytes: int
    fits: tuple[int, Fit] | None
    """The longest length that ran, and what shows it; None where none did."""
    fails: tuple[int, Fit] | None
    """The shortest length that did not; None where all did."""


def naive_curves(setting: Setting) -> Iterator[tuple[Head, ...]]:
    """The backward passes of naive attention that differ in their length alone, the shortest first."""
    naive = [
        point for point in points(setting) if point.arm == NAIVE and point.case.pass_ == "backward"
    ]
    naive.sort(key=lambda point: point.case.seq_len)
    yield from values.groups(naive, lambda point: (point.precision, point.case.head_dim))


def ends(view: View[Head]) -> Iterator[End]:
    """Of every curve and limit as far as it was searched."""
    naive = [cell for cell in cells(view) if cell.arm == NAIVE]
    for curve, limit in product(curves(naive), limits(view.setting, SMALL_LIMITS_BYTES)):
        fits: tuple[int, Fit] | None = None
        fails: tuple[int, Fit] | None = None
        for cell in curve:
            point = cell.backward.point
            found = fit(point, limit, view.readings, view.setting, small=SMALL_LIMITS_BYTES)
            if found is None:
                break
            if found.verdict != "fits":
                fails = (cell.seq_len, found)
                break
            fits = (cell.seq_len, found)
        if fits or fails:
            yield End(first=curve[0], limit_bytes=limit, fits=fits, fails=fails)


def fastest(view: View[Head]) -> Iterator[Conclusion]:
    """The fastest arm in the precision of the inputs against naive, at the longest length at which both
    ran, of each pass; and what another precision of the products gains there."""
    for group in values.groups(cells(view), place):
        for name in ("forward", "backward"):
            yield from _of_pass(group, name)


def _of_pass(group: Sequence[Cell], name: str) -> Iterator[Conclusion]:
    for length in sorted({cell.seq_len for cell in group}, reverse=True):
        there = {cell: getattr(cell, name) for cell in group if cell.seq_len == length}
        ranking = rank(row for cell, row in there.items() if cell.arm.precision is None)
        naive = next((row for row in ranking.timed if row.name == NAIVE.name), None)
        if naive is None or len(ranking.timed) == 1:
            continue
        where = f"In {place(group[0])}, {name}"
        yield from _fastest(where, name, ranking, naive)
        for cell, row in there.items():
            if cell.arm.precision is not None and row.time is not None:
                told = Sentence()
                at = told("length", length, "count", row.measurement)
                yield from told.end(
                    f"{where} at length {at}, {row.name} computes its products in {cell.arm.precision}, so "
                    f"that it is no rival of the others: {_speed(told, row, naive, name)} the speed of naive "
                    f"in {cell.precision} ({_range(told, row, naive)}; {_seconds(told, row)})."
                )
        return


def _fastest(where: str, name: str, ranking: Ranking, naive: AnyRow) -> Iterator[Conclusion]:
    told, best = Sentence(), ranking.timed[0]
    at = told("length", seq_len(naive), "count", naive.measurement)
    if best == naive:
        yield from told.end(
            f"{where} at length {at}, nothing that was timed is faster than naive ({_seconds(told, naive)})"
            f"{ranking.absent}."
        )
        return
    # Naive is told by its own ratio.
    near = [row.name for row in ranking.near if row != naive]
    though = f", though not measurably faster than {' or '.join(near)}" if near else ""
    yield from told.end(
        f"{where} at length {at}, {best.name} is {ranking.title}{though}: {_speed(told, best, naive, name)} "
        f"the speed of naive ({_range(told, best, naive)}; {_seconds(told, best)} against "
        f"{_seconds(told, naive)}){ranking.absent}."
    )


def _speed(told: Sentence, row: AnyRow, naive: AnyRow, name: str) -> str:
    speed, both = longer(row, naive), (naive.measurement, row.measurement)
    return told.estimate(f"speed over naive, {name}", speed, "ratio", *both)


def _range(told: Sentence, row: AnyRow, naive: AnyRow) -> str:
    """The ends of the ratio to naive's time, and within how many processes they are."""
    speed, both = longer(row, naive), (naive.measurement, row.measurement)
    assert speed is not None  # Both were timed.
    low = told("low end of it", speed.low, "ratio", *both)
    return f"{low} to {told('high end of it', speed.high, 'ratio', *both)}{processes(*both)}"


def _seconds(told: Sentence, row: AnyRow) -> str:
    return told("time", row.median_s, "s", row.measurement)


def grows(view: View[Head]) -> Iterator[Conclusion]:
    """Naive beside the least of memory held, by precision and head dim: the exponents of memory, and how
    the time of backward grows at the long end.

    No power law fits a time over all lengths: short ones are launches. Its exponent, which the table
    has, is no claim about how attention grows.
    """
    known = [(each.held, each) for each in grown(view) if each.held is not None and each.backward]
    for of in values.groups(known, lambda each: place(each[1].last)):
        naive = next((each for each in of if each[1].last.arm == NAIVE), None)
        if naive is not None and len(of) > 1:
            yield from _growth(naive, min(of, key=lambda each: each[0]))


def _growth(naive: tuple[float, Growth], least: tuple[float, Growth]) -> Iterator[Conclusion]:
    told = Sentence()

    def held(each: tuple[float, Growth]) -> str:
        power, of = each
        ran = [row.measurement for cell in of.curve for row in cell.rows if row.status == "ok"]
        return told(f"exponent of memory held, {of.last.name}", power, "count", *ran)

    (_, first), (_, second) = naive, least
    where = f"In {place(first.last)}"
    if first == second:
        yield from told.end(
            f"{where} no memory held grows slower than naive's, with the length to the power of "
            f"{held(naive)}."
        )
        return
    text = (
        f"{where} memory held for backward grows with the length to the power of {held(naive)} in naive "
        f"attention and of {held(least)} in {second.last.name}"
    )
    at, of = (
        {cell.seq_len: cell.backward for cell in each.curve if cell.backward.time}
        for each in (first, second)
    )
    shared = sorted(at.keys() & of.keys())[-2:]
    if len(shared) == 2:
        short, long = (
            told(f"{name} length", length, "count", at[length].measurement)
            for name, length in zip(("short", "long"), shared, strict=True)
        )

        def times(name: str, rows: dict[int, HeadRow]) -> tuple[str, str]:
            first, second = (rows[length] for length in shared)
            found, both = longer(first, second), (first.measurement, second.measurement)
            quantity = f"growth of backward time, {name}"
            ends = told.range(quantity, found, "ratio", *both)
            return told.estimate(quantity, found, "ratio", *both), ends

        (own, own_ends), (other, other_ends) = (
            times(first.last.name, at),
            times(second.last.name, of),
        )
        within = processes(*(at[length].measurement for length in shared))
        text += (
            f"; from length {short} to {long} backward comes to take {own} as long in the one ({own_ends}) "
            f"and {other} in the other ({other_ends}), intervals{within}"
        )
    yield from told.end(f"{text}.")


def held(view: View[Head]) -> Iterator[Conclusion]:
    """The probability matrix's share of what naive holds, and who holds least, at the longest."""
    for group in values.groups(cells(view), place):
        known = [(cell.held_bytes, cell) for cell in group if cell.held_bytes is not None]
        naive = max(
            (cell for _, cell in known if cell.matrix_share is not None),
            key=lambda cell: cell.seq_len,
            default=None,
        )
        if naive is None:
            continue
        beside = [each for each in known if each[1].seq_len == naive.seq_len]
        n_bytes, least = min(beside, key=lambda each: each[0])
        told, source = Sentence(), naive.backward.measurement
        at = told("length", naive.seq_len, "count", source)
        share = told("the probability matrix's share", naive.matrix_share, "share", source)
        whole = told("held by naive", naive.held_bytes, "bytes", source)
        copies = ", in fp32 and its copy in bf16," if naive.precision == "bf16" else ""
        text = (
            f"In {place(naive)} at length {at} the probability matrix{copies} is {share} of the {whole} that "
            "naive attention holds for backward"
        )
        if least.arm != naive.arm:
            of = told(f"held by {least.name}", n_bytes, "bytes", least.backward.measurement)
            text += f"; {least.name} holds {of}"
        yield from told.end(f"{text}.")


def out_of_memory(view: View[Head]) -> Iterator[Conclusion]:
    """Where naive runs out of memory, by limit."""
    for end in ends(view):
        if end.fails is None or end.fails[1].verdict != "oom":
            continue
        told, (length, failure) = Sentence(), end.fails
        fails = told("length that does not fit", length, "count", failure.proof)
        where = (
            f"Under {format_cell(end.limit_bytes, 'bytes')}, {place(end.first)}, naive attention"
        )
        if end.fits is None:
            yield from told.end(f"{where} runs out of memory at length {fails} already.")
        else:
            fits = told("longest length that fits", end.fits[0], "count", end.fits[1].proof)
            yield from told.end(
                f"{where} runs forward and backward up to length {fits} and is out of memory at {fails}."
            )


def time_or_status(row: HeadRow) -> Interval | str:
    """For a table."""
    return row.time or row.status


def joined(get: Callable[[HeadRow], str | None], separator: str) -> Callable[[Cell], str | None]:
    """What is told of both passes, each word once."""
    return lambda cell: separator.join(dict.fromkeys(filter(None, map(get, cell.rows)))) or None


def power(found: Interval | None) -> str | None:
    """For a table."""
    return None if found is None else f"{found.estimate:.2f} ({found.low:.2f} to {found.high:.2f})"


def rows_of(group: tuple[Cell, ...]) -> Callable[[View[Head]], tuple[Cell, ...]]:
    """The cells of a group, whatever the view."""
    return lambda _view: group


def plots(view: View[Head]) -> Iterator[Plot]:
    """Forward, backward and memory for each precision and head dim."""
    length = Value("sequence length", "count", lambda cell: cell.seq_len)
    drawn = (
        ("Forward time", Value("time", "s", lambda cell: cell.forward.time)),
        ("Backward time", Value("time", "s", lambda cell: cell.backward.time)),
        ("Held for backward", Value("bytes held", "bytes", lambda cell: cell.held_bytes)),
    )
    for group in values.groups(cells(view), place):
        for title, y in drawn:
            yield from plot(
                f"{title}, {place(group[0])}",
                length,
                y,
                lambda cell: cell.name,
                rows_of(group),
                log="xy",
            )(view)


STUDY = Study(
    title="What does each attention take in time and memory, and how does it grow?",
    points=points,
    search=search(naive_curves, SMALL_LIMITS_BYTES),
    tables=(
        table(
            lambda cell: f"Attention, {place(cell)}",
            (
                Value("length", "count", lambda cell: cell.seq_len),
                text("attention", lambda cell: cell.name),
                spread("forward", lambda cell: time_or_status(cell.forward)),
                spread("backward", lambda cell: time_or_status(cell.backward)),
                Value("held for backward", "bytes", lambda cell: cell.held_bytes),
                Value("of it the probability matrix", "share", lambda cell: cell.matrix_share),
                text("verdicts", joined(lambda row: verdict(row.measurement), ", ")),
                text("reason", joined(lambda row: row.reason, "; ")),
            ),
            cells,
            each=place,
        ),
        table(
            "Exponents in the length",
            (
                text("precision", lambda each: each.last.precision),
                Value("head dim", "count", lambda each: each.last.head_dim),
                text("attention", lambda each: each.last.name),
                spread("forward time", lambda each: power(each.forward)),
                spread("backward time", lambda each: power(each.backward)),
                text(
                    "held for backward",
                    lambda each: None if each.held is None else f"{each.held:.2f}",
                ),
            ),
            grown,
            note="The k of c·length^k by least squares on logarithms, over all lengths that ran, the short "
            "ones included, where launches weigh most. Intervals are those of the times, not of the fit.",
        ),
        table(
            "Naive attention, forward and backward, under memory limits",
            (
                text("precision", lambda end: end.first.precision),
                Value("head dim", "count", lambda end: end.first.head_dim),
                Value("limit", "bytes", lambda end: end.limit_bytes),
                Value("longest that fits", "count", lambda end: end.fits and end.fits[0]),
                Value("shortest that does not", "count", lambda end: end.fails and end.fails[0]),
                text("status", lambda end: end.fails and end.fails[1].verdict),
                text("reason", lambda end: end.fails and end.fails[1].proof.reason),
            ),
            ends,
            note="Of the lengths of the grid.",
        ),
    ),
    plots=(plots,),
    claims=(fastest, grows, held, out_of_memory),
    notes=lambda view: (
        "Causal attention of one head. Compiled is torch.compile of the naive one; sdpa is the "
        "backend that torch chooses, flex torch's FlexAttention with the causal block mask, flash "
        "and flash-hopper are Peakward's kernels.",
        "Backward is measured by itself, through one graph that is kept. Held for backward is what "
        "the forward pass leaves, its result included and its inputs not: by the allocator on a "
        "GPU, by what autograd saved on a CPU.",
        "The probability matrix is batch × length², as naive attention keeps it: the softmax's result "
        "in fp32, and in bf16 also the copy that is multiplied with the values. Naive holds a boolean "
        "mask beside it. What the compiled formula keeps is not known.",
        *limit_notes(view.setting, SMALL_LIMITS_BYTES),
    ),
)
