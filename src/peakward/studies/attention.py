"""Study `attention`: what each way to compute attention takes, and what it keeps for backward.

One head over lengths and head dims: forward, backward and memory held in between; then, under memory
limits, the length at which the naive way ends.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import msgspec

from peakward.records.case import OperatorPass
from peakward.records.measurement import Interval, Measurement
from peakward.records.study import Conclusion, Plot
from peakward.studies import claims, values
from peakward.studies.attention_arms import NAIVE, Head, every_arm, head, seq_len, studied
from peakward.studies.claims import Sentence, compared, fastest, growth, longer
from peakward.studies.engine import Row, Study, View
from peakward.studies.fits import Fit, Reach, ends, limit_notes, reaches, search
from peakward.studies.power_law import exponent
from peakward.studies.readings import processes, verdict
from peakward.studies.setting import Setting
from peakward.studies.values import Value, plot, spread, table, text

BATCH_SIZE = 8
PASSES: tuple[OperatorPass, ...] = ("forward", "backward")
HEAD_DIMS = {"small": (64,), "corners": (16, 128), "full": (16, 32, 64, 128)}
SEQ_LENS = {
    "small": (128, 512, 1024),
    "corners": (256, 4096, 16384),
    "full": (256, 1024, 4096, 8192, 16384),
}
"""Three at least, for an exponent."""
SMALL_LIMITS_BYTES = (384 * 2**20,)
"""The limits hold for the whole process on a CPU, of which torch takes up to 300 MiB: 8 × 512² in fp32
takes 8 MiB a matrix and fits, 8 × 1024² takes 32 and does not."""
HeadRow = Row[Head]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A way to compute attention at one size, forward and backward."""

    forward: HeadRow
    backward: HeadRow

    @property
    def point(self) -> Head:
        """The backward pass."""
        return self.backward.point

    @property
    def name(self) -> str:
        """The arm's."""
        return self.point.name

    @property
    def seq_len(self) -> int:
        """The case's."""
        return self.point.case.seq_len

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
        item = 4 + (2 if self.point.precision == "bf16" else 0)
        matrix = self.point.case.batch_size * self.seq_len**2 * item
        held = self.held_bytes
        return None if self.name != NAIVE.name or held is None or held < matrix else matrix / held


Curve = tuple[Cell, ...]


def points(setting: Setting) -> Iterator[Head]:
    """Precision × head dim × length × way to compute it, forward and backward."""
    scope = setting.scope
    sizes = product(HEAD_DIMS[scope.name], scope.seq_lens or SEQ_LENS[scope.name])
    for precision, (head_dim, n), arm in product(studied(setting), sizes, every_arm(setting)):
        # tf32 takes inputs in fp32 alone.
        if arm.precision is None or precision == "fp32":
            for pass_ in PASSES:
                yield head(
                    arm,
                    precision,
                    pass_,
                    setting,
                    batch_size=scope.batch_size or BATCH_SIZE,
                    seq_len=n,
                    head_dim=head_dim,
                )


def cells(view: View[Head]) -> tuple[Cell, ...]:
    """The grid, forward beside backward."""
    pairs = zip(view.rows[::2], view.rows[1::2], strict=True)
    return tuple(Cell(forward=forward, backward=backward) for forward, backward in pairs)


def place(cell: Cell) -> str:
    """For a title or a sentence: "fp32, head dim 64"."""
    return cell.point.where


def curves(view: View[Head]) -> tuple[Curve, ...]:
    """Cells that differ in their length alone, the shortest first."""
    by_length = sorted(cells(view), key=lambda each: each.seq_len)
    return values.groups(by_length, lambda cell: (place(cell), cell.name))


def time_power(curve: Curve, pass_: str) -> Interval | None:
    """The exponent of a pass's time over the lengths at which it ran; None where fewer than three did."""
    found = growth((getattr(cell, pass_) for cell in curve), seq_len)
    return None if found is None else found[0]


def held_power(curve: Curve) -> float | None:
    """The exponent of what is held for backward; None for fewer than three lengths."""
    held = claims.known(curve, lambda cell: cell.held_bytes)
    return exponent([cell.seq_len for _, cell in held], [n_bytes for n_bytes, _ in held])


def grown(view: View[Head]) -> list[Curve]:
    """Every curve of which some exponent is known."""
    return [
        curve
        for curve in curves(view)
        if held_power(curve) or any(time_power(curve, each) for each in PASSES)
    ]


def naive_curves(setting: Setting) -> tuple[tuple[Head, ...], ...]:
    """The backward passes of naive attention that differ in their length alone, the shortest first."""
    ordered = sorted(points(setting), key=lambda point: point.case.seq_len)
    naive = (each for each in ordered if each.arm == NAIVE and each.case.pass_ == "backward")
    return values.groups(naive, lambda each: each.where)


def naive_reaches(view: View[Head]) -> Iterator[Reach]:
    """Up to which length naive attention runs forward and backward under each limit."""
    return reaches(view, naive_curves, SMALL_LIMITS_BYTES)


def speeds(view: View[Head]) -> Iterator[Conclusion]:
    """The fastest arm in the precision of the inputs against naive, at the longest length at which both
    ran, of each pass; and what another precision of the products gains there."""
    for group, name in product(values.groups(cells(view), place), PASSES):
        for length in sorted({cell.seq_len for cell in group}, reverse=True):
            there: list[HeadRow] = [getattr(cell, name) for cell in group if cell.seq_len == length]
            rivals = [row for row in there if row.point.arm.precision is None]
            timed = [row for row in rivals if row.time]
            naive = next((row for row in timed if row.name == NAIVE.name), None)
            if naive is not None and len(timed) > 1:
                where = f"In {place(group[0])}, {name} at length {length:,}"
                yield from fastest(where, rivals, naive)
                for row in there:
                    if row.point.arm.precision is not None:
                        yield from compared(where, naive, row)
                break


def growths(view: View[Head]) -> Iterator[Conclusion]:
    """Naive and the least of memory held, by precision and head dim: the exponent of memory, and how the time
    of backward grows at the long end.

    No power law fits a time over all lengths: short ones are launches. Its exponent, which the table
    has, is no claim about how attention grows.
    """
    grow = [
        each for each in claims.known(curves(view), held_power) if time_power(each[1], "backward")
    ]
    for of in values.groups(grow, lambda each: place(each[1][0])):
        naive = [each for each in of if each[1][0].name == NAIVE.name]
        for power, curve in dict.fromkeys((*naive, claims.least(of))) if naive and of[1:] else ():
            told, (before, last) = Sentence(), [cell for cell in curve if cell.backward.time][-2:]
            held = told("exponent of memory held", power, "count", *ran(curve))
            both = (before.backward.measurement, last.backward.measurement)
            factor = longer(before.backward, last.backward)
            yield from told.end(
                f"In {place(last)}, {last.name}: memory held for backward grows as the length to the power "
                f"of {held}; from length {before.seq_len:,} to {last.seq_len:,} the time of backward grows "
                f"by {told.interval('growth', factor, 'ratio', *both)}, intervals{processes(*both)}."
            )


def ran(curve: Curve) -> list[Measurement | None]:
    """The measurements of a curve that ended `ok`."""
    rows = (row for cell in curve for row in (cell.forward, cell.backward))
    return [row.measurement for row in rows if row.status == "ok"]


def held(view: View[Head]) -> Iterator[Conclusion]:
    """The probability matrix's share of what naive holds, and who holds least, at the longest."""
    for group in values.groups(cells(view), place):
        shares = [cell for cell in group if cell.matrix_share is not None]
        if not shares:
            continue
        naive = max(shares, key=lambda cell: cell.seq_len)
        there = [cell for cell in group if cell.seq_len == naive.seq_len]
        _, least = claims.least(claims.known(there, HELD.number))
        where = f"In {place(naive)} at length {naive.seq_len:,} {{}} attention"
        for cell, figures in ((naive, (HELD, MATRIX)), (least, (HELD,))):
            if cell is naive or least is not naive:
                source = cell.backward.measurement
                yield from claims.listed(where.format(cell.name), figures, cell, source)


def length(found: tuple[Any, Fit] | None) -> int | None:
    """The length of a case and what shows whether it fits."""
    return None if found is None else found[0].case.seq_len


def out_of_memory(view: View[Head]) -> Iterator[Conclusion]:
    """Where naive runs out of memory, by limit."""
    yield from ends(
        naive_reaches(view),
        lambda point: f"{point.where}, naive attention, forward and backward,",
        "length",
        lambda point: point.case.seq_len,
    )


def joined(get: Callable[[HeadRow], str | None], separator: str) -> Callable[[Cell], str | None]:
    """Returns a function that joins what `get` tells of both passes, each word once."""
    return lambda cell: (
        separator.join(dict.fromkeys(filter(None, map(get, (cell.forward, cell.backward))))) or None
    )


def drawn(title: str, y: Value) -> Callable[[View[Head]], Iterator[Plot]]:
    """A plot by length for each precision and head dim."""
    return plot(
        lambda cell: f"{title}, {place(cell)}",
        Value("sequence length", "count", lambda cell: cell.seq_len),
        y,
        lambda cell: cell.name,
        cells,
        each=place,
        log="xy",
    )


HELD = Value("held for backward", "bytes", lambda cell: cell.held_bytes)
MATRIX = Value("of it the probability matrix", "share", lambda cell: cell.matrix_share)
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
                spread("forward", lambda cell: cell.forward.time or cell.forward.status),
                spread("backward", lambda cell: cell.backward.time or cell.backward.status),
                HELD,
                MATRIX,
                text("verdicts", joined(lambda row: verdict(row.measurement), ", ")),
                text("reason", joined(lambda row: row.reason, "; ")),
            ),
            cells,
            each=place,
        ),
        table(
            "Exponents in the length",
            (
                text("precision", lambda curve: curve[0].point.precision),
                Value("head dim", "count", lambda curve: curve[0].point.case.head_dim),
                text("attention", lambda curve: curve[0].name),
                spread("forward time", lambda curve: time_power(curve, "forward"), "count"),
                spread("backward time", lambda curve: time_power(curve, "backward"), "count"),
                Value("held for backward", "count", held_power),
            ),
            grown,
            note="The k of c·length^k by least squares on logarithms, over all lengths that ran, the short "
            "ones included, where launches weigh most. Intervals are those of the times, not of the fit.",
        ),
        table(
            "Naive attention, forward and backward, under memory limits",
            (
                text("precision", lambda reach: reach.first.precision),
                Value("head dim", "count", lambda reach: reach.first.case.head_dim),
                Value("limit", "bytes", lambda reach: reach.limit_bytes),
                Value("longest that fits", "count", lambda reach: length(reach.fits)),
                Value("shortest that does not", "count", lambda reach: length(reach.fails)),
                text("status", lambda reach: reach.fails and reach.fails[1].verdict),
                text("reason", lambda reach: reach.fails and reach.fails[1].proof.reason),
            ),
            naive_reaches,
            note="Of the lengths of the grid.",
        ),
    ),
    plots=(
        drawn("Forward time", Value("time", "s", lambda cell: cell.forward.time)),
        drawn("Backward time", Value("time", "s", lambda cell: cell.backward.time)),
        drawn("Held for backward", Value("bytes held", "bytes", lambda cell: cell.held_bytes)),
    ),
    claims=(speeds, growths, held, out_of_memory),
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
