"""Small pieces of code that are timed against each other: what the studies of them share."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import product

from peakward.records.case import DeviceType, MicroCase, MicroPrecision, MicroSubject
from peakward.records.measurement import PieceWork, Protocol
from peakward.records.study import Conclusion
from peakward.studies import values
from peakward.studies.claims import extremes
from peakward.studies.engine import Point, Row, View
from peakward.studies.readings import ratio
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.values import Value

MAX_STEPS = 2000
"""Ten times the usual: 200 steps of a piece of microseconds end before the clock has settled, and 20,000
would fill the store."""
SMALL_TIMED_S = 0.25
"""Warm-up and timing of 25 pieces of some milliseconds then end within half a minute."""
SHOWN = {"online": "online by torch calls"}
"""The names shown for pieces whose own name, by which stored cases are found, says too little."""
PRECISIONS: dict[DeviceType, tuple[MicroPrecision, ...]] = {
    "cpu": ("fp32",),
    "cuda": ("fp32", "bf16"),
}
FP64_NOTE = "The difference is the largest from fp64 on the same inputs, over the largest value."

Piece = Point[MicroCase]
PieceRow = Row[Piece]
Sizes = dict[MicroSubject, tuple[tuple[int, ...], ...]]
Grids = Mapping[tuple[DeviceType, ScopeName], Sizes]


def protocol(setting: Setting) -> Protocol:
    """Returns a protocol of as many steps as the timed seconds hold, up to `MAX_STEPS`."""
    bounds: dict[str, int | float] = {"max_steps": MAX_STEPS}
    if setting.scope.name == "small" and setting.scope.max_timed_s is None:
        bounds["max_timed_s"] = SMALL_TIMED_S
    return setting.protocol(**bounds)


def pieces(cases: Iterable[MicroCase], by: Protocol) -> tuple[Piece, ...]:
    """A point for each case."""
    return tuple(
        Point(case=case, protocol=by, name=SHOWN.get(case.piece, case.piece)) for case in cases
    )


def grid(
    setting: Setting, grids: Grids, named: Mapping[MicroSubject, Iterable[str]]
) -> tuple[Piece, ...]:
    """Subject × sizes × precision × piece."""
    device = setting.device
    cases = (
        MicroCase(subject=subject, piece=piece, sizes=sizes, precision=precision, device=device)
        for subject, of_subject in grids[device, setting.scope.name].items()
        for sizes, precision, piece in product(
            dict.fromkeys(of_subject), PRECISIONS[device], named[subject]
        )
    )
    return pieces(cases, protocol(setting))


def groups(rows: Iterable[PieceRow]) -> tuple[tuple[PieceRow, ...], ...]:
    """Those that compute the same, together: one subject, one set of sizes, one precision."""
    return values.groups(
        rows, lambda row: (row.point.case.subject, row.point.case.sizes, row.point.case.precision)
    )


def named(group: Iterable[PieceRow], piece: str) -> PieceRow | None:
    """The piece of a group, if it has one of that name and that was timed."""
    return next((each for each in group if each.point.case.piece == piece and each.time), None)


def subject(row: PieceRow) -> MicroSubject:
    """Returns what the row's piece computes."""
    return row.point.case.subject


def sizes(row: PieceRow) -> str:
    """For a cell or a sentence: "1024 × 4096"."""
    return " × ".join(map(str, row.point.case.sizes))


def place(row: PieceRow) -> str:
    """For a sentence: "softmax of 1024 × 4096 in fp32"."""
    return f"{subject(row)} of {sizes(row)} in {row.point.case.precision}"


def work(row: PieceRow) -> PieceWork | None:
    """None unless the case ended `ok`."""
    return None if row.measurement is None else row.measurement.piece


def moved_bytes(row: PieceRow) -> int | None:
    """Bytes of operands, each once for each call or kernel that has it; None where nothing counted them."""
    return None if (done := work(row)) is None else done.moved_bytes


def difference(row: PieceRow) -> float | None:
    """The largest from fp64 on the same inputs, over the largest value."""
    return None if (done := work(row)) is None else done.difference


def flops_per_s(row: PieceRow) -> float | None:
    """The FLOPs of the subject's formula over the time."""
    return None if (done := work(row)) is None else ratio(done.flops, row.median_s)


def bytes_per_s(row: PieceRow) -> float | None:
    """Bytes that it has to move at least, over its time: what a better piece would have more of."""
    return None if (done := work(row)) is None else ratio(done.least_bytes, row.median_s)


def equality(view: View[Piece], alike: Callable[[PieceRow], Hashable]) -> Iterator[Conclusion]:
    """How far pieces that are alike differ from fp64, and where most."""
    for group in values.groups(view.rows, alike):
        precision = group[0].point.case.precision
        same = len({row.name for row in group}) == 1
        of = group[0].name if same else "pieces"
        subject = f"The difference of {of} in {precision} from fp64 is"
        yield from extremes(subject, DIFFERENCE, group, of="of the largest value")


PRECISION = values.text("precision", lambda row: row.point.case.precision)
MOVED = Value("bytes moved", "bytes", moved_bytes)
RATE = Value("rate", "flops_per_s", flops_per_s)
DIFFERENCE = Value("difference from fp64", "count", difference)
