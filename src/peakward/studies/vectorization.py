"""Study `vectorization`: one matrix product as loops in Python, by NumPy and by torch."""

from collections.abc import Iterable, Iterator

from peakward.records.calibration import MatmulRate
from peakward.records.case import DeviceType, MicroCase, MicroPrecision
from peakward.records.study import Conclusion
from peakward.studies import pieces, values
from peakward.studies.claims import compared, grows, known, listed, most
from peakward.studies.engine import Study, View
from peakward.studies.pieces import Piece, PieceRow, flops_per_s
from peakward.studies.readings import ratio
from peakward.studies.scope import ScopeName
from peakward.studies.setting import Setting
from peakward.studies.values import STATUS, TIME, VERDICT, Value, given, plot, table, text

LOOPS, NUMPY, TORCH = "python loops", "numpy", "torch"
LOOP_SIZES: dict[ScopeName, tuple[int, ...]] = {
    "small": (32, 64, 128),
    "corners": (32, 64, 128),
    "full": (32, 64, 128, 256),
}
"""256 takes about a second a product (CPython 3.11)."""
NUMPY_SIZES = (32, 64, 128, 256, 512, 1024, 2048)
TORCH_SIZES: dict[ScopeName, tuple[int, ...]] = {
    "small": NUMPY_SIZES,
    "corners": (*NUMPY_SIZES, 8192),
    "full": (*NUMPY_SIZES, 4096, 8192),
}
"""Sizes on a GPU; a CPU takes NumPy's."""
TORCH_PRECISIONS: dict[DeviceType, tuple[MicroPrecision, ...]] = {
    "cpu": ("fp32",),
    "cuda": ("fp32", "tf32", "bf16"),
}
HELD_TO = {"fp64": "fp32"}
"""The precision whose square product stands for one that is not calibrated."""


def points(setting: Setting) -> tuple[Piece, ...]:
    """Loops and NumPy on the CPU, torch on the device, each at several sizes."""
    device, name = setting.device, setting.scope.name
    in_torch = NUMPY_SIZES if device == "cpu" else TORCH_SIZES[name]

    def cases(
        piece: str, sizes: Iterable[int], precision: MicroPrecision, where: DeviceType
    ) -> Iterator[MicroCase]:
        for n in sizes:
            yield MicroCase(
                subject="matmul", piece=piece, sizes=(n,), precision=precision, device=where
            )

    return pieces.pieces(
        (
            *cases(LOOPS, LOOP_SIZES[name], "fp64", "cpu"),
            *cases(NUMPY, NUMPY_SIZES, "fp32", "cpu"),
            *(
                case
                for precision in TORCH_PRECISIONS[device]
                for case in cases(TORCH, in_torch, precision, device)
            ),
        ),
        pieces.protocol(setting),
    )


def n_of(row: PieceRow) -> int:
    """The product's size."""
    return row.point.case.sizes[0]


def way(row: PieceRow) -> tuple[str, str]:
    """By what the product is made, and in which precision."""
    return row.point.case.piece, row.point.case.precision


def square_product(row: PieceRow) -> MatmulRate | None:
    """The fastest square product that the calibration measured in the type; None on another device than
    the calibration's, and of a type that it did not measure."""
    case, of = row.point.case, row.calibration
    if of is None or of.environment.device_type != case.device:
        return None
    kind = HELD_TO.get(case.precision, case.precision)
    own = [rate for rate in of.matmul if rate.compute_type == kind]
    return max(own, key=lambda rate: rate.flops_per_s, default=None)


def square_share(row: PieceRow) -> float | None:
    """The rate over the square product's."""
    square = square_product(row)
    return None if square is None else ratio(flops_per_s(row), square.flops_per_s)


def by_size(view: View[Piece], piece: str) -> dict[int, PieceRow]:
    """The timed ones of a way by n, in the first precision that it has."""
    timed = [row for row in view.rows if row.name == piece and row.time]
    return {n_of(row): row for row in reversed(timed)}


def speedups(view: View[Piece]) -> Iterator[Conclusion]:
    """Loops against NumPy and torch at the largest size that all of them ran, and NumPy against torch
    at the largest of theirs."""
    for slow, fast in ((LOOPS, NUMPY), (LOOPS, TORCH), (NUMPY, TORCH)):
        left, right = by_size(view, slow), by_size(view, fast)
        if shared := left.keys() & right.keys():
            n = max(shared)
            elsewhere = left[n].point.case.device != right[n].point.case.device
            where = ", the first on the CPU, the second on the GPU" if elsewhere else ""
            yield from compared(f"A product of {n} × {n}{where}", left[n], right[n])


def loops_grow(view: View[Piece]) -> Iterator[Conclusion]:
    """The exponent of the loops' time in n."""
    loops = [row for row in view.rows if row.name == LOOPS]
    yield from grows("The loops' time, for n³ FLOPs,", loops, N)


def shares(view: View[Piece]) -> Iterator[Conclusion]:
    """The best that each way reaches of the fastest square product that was measured on its device."""
    for group in values.groups(view.rows, way):
        if found := known(group, square_share):
            _, best = most(found)
            square, of = square_product(best), best.calibration
            assert square is not None  # There is a share of it.
            figures = (
                pieces.RATE,
                N,
                SHARE,
                given("the square product's rate", "flops_per_s", square.flops_per_s),
                given("the square product's n", "count", square.size),
            )
            subject = (
                f"{' in '.join(way(best))} at its best, beside the fastest square product of torch measured "
                f"here in {square.compute_type}"
            )
            yield from listed(subject, figures, best, best.measurement, of)


def equality(view: View[Piece]) -> Iterator[Conclusion]:
    """The differences from fp64 of each way."""
    yield from pieces.equality(view, way)


def notes(view: View[Piece]) -> Iterator[str]:
    """Yields notes that say which FLOPs the rates count, and what the shares are of."""
    yield (
        "FLOPs are 2·n³. Shares are of the fastest square product that the calibration measured on this "
        "device in the same type, which is not the datasheet's peak; Python's floats are fp64 and are "
        "held to the product in fp32."
    )
    yield pieces.FP64_NOTE
    if view.on_gpu:
        yield (
            "Python and NumPy run on the CPU, whatever the device: theirs are the tables of a CPU, whose "
            "square product was not measured here, so that they have no share."
        )
    above = [row for row in view.rows if (square_share(row) or 0.0) > 1]
    if above:
        names = ", ".join(f"{row.name} {n_of(row)} in {row.point.case.precision}" for row in above)
        yield (
            f"A share over 100% ({names}): the product ran faster than the square one of the "
            "calibration, whose rate is the best of a few sizes at another moment."
        )


N = Value("n", "count", n_of)
SHARE = Value("of the square product", "share", square_share)
STUDY = Study(
    title="What do loops in Python cost a matrix product?",
    points=points,
    needs_ceilings=True,
    tables=(
        # No table mixes kinds of devices.
        table(
            lambda row: f"Products on the {'CPU' if row.point.case.device == 'cpu' else 'GPU'}",
            (
                N,
                text("by", lambda row: row.name),
                pieces.PRECISION,
                STATUS,
                TIME,
                pieces.RATE,
                SHARE,
                pieces.DIFFERENCE,
                VERDICT,
            ),
            each=lambda row: row.point.case.device,
        ),
    ),
    plots=(
        plot(
            "Rate of a matrix product",
            N,
            Value("FLOPs a second", "flops_per_s", flops_per_s),
            lambda row: ", ".join(way(row)),
            log="xy",
        ),
    ),
    claims=(speedups, loops_grow, shares, equality),
    notes=notes,
)
