"""Study `attention-parts`: what the softmax takes inside attention, against its FLOPs.

Naive attention alone is timed, then profiled in ranges around its parts.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Literal

import msgspec

from peakward.records.case import DeviceType, OperatorCase
from peakward.records.study import Cell, Conclusion
from peakward.studies import values
from peakward.studies.claims import listed
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.readings import ratio
from peakward.studies.setting import Setting
from peakward.studies.values import MEDIAN, STATUS, VERDICT, Value, of_row, plot, table, text
from peakward.traces.category_rules import Category

PRECISIONS: dict[DeviceType, tuple[Literal["fp32", "bf16"], ...]] = {
    "cpu": ("fp32",),
    "cuda": ("fp32", "bf16"),
}
BETWEEN = 512
"""A curve over lengths needs a third one."""
ITEM_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2}
SOFTMAX_FLOPS = 5
"""A number of a row: its maximum, subtract, exponential, sum, divide."""
ATTENTION = "peakward::attention"
NS = 1e-9
Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
WHOLE, SCORES, MASK, SOFTMAX = "attention", "score product", "scale and mask", "softmax"
CASTS, WEIGHTED, REST = "casts", "value product", "rest"
PARTS = (WHOLE, SCORES, MASK, SOFTMAX, CASTS, WEIGHTED, REST)

Case = Point[OperatorCase]
CaseRow = Row[Case]
Seconds = dict[str, float]
"""The time of attention and of each of its parts in one step."""


def points(setting: Setting) -> Iterator[Case]:
    """Heads × precision × sequence, forward and backward; models with equal heads count once."""
    grid = setting.grid
    lengths: Sequence[int] = grid.seq_lens
    if not setting.scope.seq_lens:
        lengths = sorted({*lengths, BETWEEN})
    heads = dict.fromkeys((shape.n_heads, shape.head_dim) for shape in grid.models)
    for (n_heads, width), precision, seq_len in product(heads, PRECISIONS[setting.device], lengths):
        case = OperatorCase(
            batch_size=grid.batch_size,
            n_heads=n_heads,
            seq_len=seq_len,
            head_dim=width,
            pass_="forward_backward",
            precision=precision,
            device=setting.device,
        )
        yield Point(case=case, protocol=setting.protocol(phases=False), also="profile")


def seconds(row: CaseRow, direction: Direction = "forward") -> Seconds | None:
    """The parts' times by a profile; None where there is none, or it has no attention in that direction."""
    profile = row.profile
    if profile is None:
        return None
    ranges = [each for each in profile.profile.ranges if each.direction == direction]

    def total_ns(part: str, *, only: Category | None = None, but: Category | None = None) -> int:
        return sum(
            each.total_ns
            for each in ranges
            if each.name == f"{ATTENTION}{part}"
            and (only is None or each.category == only.value)
            and (but is None or each.category != but.value)
        )

    whole_ns = total_ns("")
    if not whole_ns:
        return None
    # What else the scores' range has is their scale and mask. The other two have, beside a softmax and a
    # product, copies: in bf16 of an H200, 148 + 72 µs around a softmax of 112.
    parts_ns = {
        SCORES: total_ns(".scores", only=Category.MATMUL),
        MASK: total_ns(".scores", but=Category.MATMUL),
        SOFTMAX: total_ns(".softmax", but=Category.COPY),
        CASTS: total_ns(".softmax", only=Category.COPY) + total_ns(".values", only=Category.COPY),
        WEIGHTED: total_ns(".values", only=Category.MATMUL),
    }
    # As whole nanoseconds: no rest is then none, where seconds left 1e-21 of them.
    parts_ns |= {WHOLE: whole_ns, REST: whole_ns - sum(parts_ns.values())}
    return {part: ns * NS / profile.n_steps for part, ns in parts_ns.items()}


class Work(msgspec.Struct, frozen=True):
    """The work of a part in one step: FLOPs, and bytes with each input and output once."""

    flops: int
    n_bytes: int


def work(case: OperatorCase) -> dict[str, Work]:
    """The parts' work forward, for all heads and the whole batch; every score is computed, masked or not.

    The products are without scale and mask, the softmax is in fp32 whatever the case's type. Casts are of
    the scores to fp32 and of the weights back; there are none in fp32.
    """
    n_heads, item, wide = case.batch_size * case.n_heads, ITEM_BYTES[case.precision], 4
    square, row = case.seq_len**2, case.seq_len * case.head_dim
    # Two of queries, keys, values and result; and the scores or weights.
    one = Work(n_heads * 2 * square * case.head_dim, n_heads * (2 * row + square) * item)
    softmax = Work(n_heads * SOFTMAX_FLOPS * square, n_heads * 2 * square * wide)
    casts = {CASTS: Work(0, n_heads * 2 * square * (item + wide))} if item < wide else {}
    return {SCORES: one, SOFTMAX: softmax, **casts, WEIGHTED: one}


def part_s(part: str, row: CaseRow, direction: Direction = "forward") -> float | None:
    """A part's time in seconds."""
    told = seconds(row, direction)
    return None if told is None else told[part]


def share(part: str, row: CaseRow, direction: Direction = "forward") -> float | None:
    """A part of attention's time."""
    return ratio(part_s(part, row, direction), part_s(WHOLE, row, direction))


def over_products(row: CaseRow) -> float | None:
    """The softmax's time over that of both products, forward."""
    told = seconds(row)
    return None if told is None else ratio(told[SOFTMAX], told[SCORES] + told[WEIGHTED])


def flops_over_products(row: CaseRow) -> float:
    """The softmax's FLOPs over those of both products."""
    needed = work(row.point.case)
    return needed[SOFTMAX].flops / (needed[SCORES].flops + needed[WEIGHTED].flops)


def time_for_a_flop(row: CaseRow) -> float | None:
    """The softmax's time for a FLOP over the products'."""
    return ratio(over_products(row), flops_over_products(row))


def heads(row: CaseRow) -> str:
    """Their number and width: "12 × 64"."""
    return f"{row.point.case.n_heads} × {row.point.case.head_dim}"


def curve(row: CaseRow) -> str:
    """Names what rows of one curve share: "12 × 64, bf16"."""
    return f"{heads(row)}, {row.point.case.precision}"


def longest(view: View[Case]) -> tuple[CaseRow, ...]:
    """The longest sequence of each heads and precision whose parts are known."""
    return values.largest(profiled(view), curve, lambda row: row.point.case.seq_len)


def profiled(view: View[Case]) -> list[CaseRow]:
    """The rows whose parts are known."""
    return [row for row in view.rows if seconds(row)]


def place(row: CaseRow) -> str:
    """For a sentence: "attention of 12 heads of 64 over 4 × 1024 in bf16"."""
    case = row.point.case
    return (
        f"attention of {case.n_heads} heads of {case.head_dim} over {case.batch_size} × "
        f"{case.seq_len} in {case.precision}"
    )


def shares(view: View[Case]) -> Iterator[Conclusion]:
    """The softmax's share, and that of its casts and mask, at the longest sequence of each heads and
    precision."""
    for row in longest(view):
        casts = [] if row.case.precision == "fp32" else [CASTS]
        figures = (
            *(share_of(part, each) for part in (SOFTMAX, *casts) for each in DIRECTIONS),
            share_of(MASK, "forward"),
        )
        yield from listed(f"Of the time of {place(row)}", figures, row, row.profile)


def share_of(part: str, direction: Direction) -> Value:
    """A part's share of attention in one direction."""
    return Value(f"{part} {direction}", "share", lambda row: share(part, row, direction))


def ratios(view: View[Case]) -> Iterator[Conclusion]:
    """Time against FLOPs at the longest sequence of each heads and precision."""
    for row in longest(view):
        if over_products(row):
            alone = ", without its casts," if row.case.precision != "fp32" else ""
            subject = f"The softmax{alone} against both products in {place(row)}"
            yield from listed(subject, RATIOS, row, row.profile)


def notes(view: View[Case]) -> tuple[str, ...]:
    """Returns notes that say what a part's time, FLOPs and bytes include."""
    work = "kernels" if view.on_gpu else "operators"
    return (
        f"Times of the parts are the durations of their {work} under a profiler, without what "
        "lies between them. The products are what of the scores' and values' ranges is a "
        "matmul; the rest of the scores' range scales and masks. Casts are the copies of scores "
        "and weights between the case's type and the softmax's fp32. Backward, a part is what "
        "computes its gradients.",
        "FLOPs of a head and batch, forward: 2·S²·d for each product, 5·S² for the softmax; "
        "backward twice that for a product, 4·S² for the softmax. Naive attention computes all "
        "of S², causal or not. Bytes are each input and output once, in the case's type; of the "
        "softmax in fp32, of the casts in both.",
    )


def time_of(part: str) -> Value:
    """A part's time in one direction: of lines of a row and a direction."""
    return Value(part, "s", lambda line: part_s(part, *line))


def of_part(get: Callable[[Work, float], float | None]) -> Callable[[tuple[CaseRow, str]], Cell]:
    """Reads a part's work and seconds off a line of it."""

    def found(line: tuple[CaseRow, str]) -> float | None:
        row, part = line
        told = seconds(row)
        return None if told is None else get(work(row.point.case)[part], told[part])

    return found


CASE = (
    text("heads", heads),
    text("batch × length", lambda row: f"{row.point.case.batch_size} × {row.point.case.seq_len}"),
    text("precision", lambda row: row.point.case.precision),
)
RATIOS = (
    Value("ratio of times", "ratio", over_products),
    Value("ratio of FLOPs", "ratio", flops_over_products),
    Value("time for a FLOP, over the products'", "ratio", time_for_a_flop),
)
STUDY = Study(
    title="What does the softmax take inside attention?",
    points=points,
    tables=(
        table(
            "Time of attention's parts",
            (
                *of_row(*CASE, STATUS),
                text("direction", lambda line: line[1]),
                *map(time_of, PARTS),
                Value("softmax's share", "share", lambda line: share(SOFTMAX, *line)),
                *of_row(msgspec.structs.replace(MEDIAN, name="plain step"), VERDICT),
            ),
            lambda view: product(view.rows, DIRECTIONS),
            note="The plain step is the measured time of both directions, with all that lies between.",
        ),
        table(
            "Work of attention's parts, forward",
            (
                *of_row(*CASE),
                text("part", lambda line: line[1]),
                Value("time", "s", of_part(lambda _, part_s: part_s)),
                Value("FLOPs", "flops", of_part(lambda work, _: work.flops or None)),
                Value(
                    "rate",
                    "flops_per_s",
                    of_part(lambda work, part_s: ratio(work.flops or None, part_s)),
                ),
                Value("bytes", "bytes", of_part(lambda work, _: work.n_bytes)),
                Value(
                    "bandwidth",
                    "bytes_per_s",
                    of_part(lambda work, part_s: ratio(work.n_bytes, part_s)),
                ),
            ),
            lambda view: ((row, part) for row in profiled(view) for part in work(row.point.case)),
        ),
        table(
            "The softmax against both products, forward",
            (
                *CASE,
                *RATIOS,
            ),
            profiled,
        ),
    ),
    plots=(
        plot(
            "The softmax's share of attention, forward",
            Value("sequence length", "count", lambda row: row.point.case.seq_len),
            Value("share of attention's time", "share", lambda row: share(SOFTMAX, row)),
            curve,
            log="x",
        ),
    ),
    claims=(shares, ratios),
    notes=notes,
)
