"""What the numbers of `vectorization` say."""

from collections.abc import Iterator, Sequence

from peakward.records.calibration import Calibration
from peakward.records.study import Conclusion
from peakward.studies.parts import evidence, say
from peakward.studies.pieces import Timed, compared
from peakward.studies.power_law import exponent_interval
from peakward.studies.vectorization.grid import LOOPS, NUMPY, TORCH
from peakward.studies.vectorization.tables import square_product, square_share


def speedups(timed: Sequence[Timed]) -> Iterator[Conclusion]:
    """Loops against NumPy and torch at the largest size that all of them ran, and NumPy against torch
    at the largest of theirs."""
    for slow, fast in ((LOOPS, NUMPY), (LOOPS, TORCH), (NUMPY, TORCH)):
        left, right = _by_size(timed, slow), _by_size(timed, fast)
        if shared := left.keys() & right.keys():
            n = max(shared)
            elsewhere = left[n].case.device != right[n].case.device
            where = ", the first on the CPU, the second on the GPU" if elsewhere else ""
            yield from compared(f"A product of {n} × {n}{where}", left[n], right[n])


def growth(timed: Sequence[Timed]) -> Iterator[Conclusion]:
    """The exponent of the loops' time in n, with the interval that those of the times give it."""
    known = [(n, each.time, each.measurement) for n, each in _by_size(timed, LOOPS).items()]
    told = [(n, found, source) for n, found, source in known if found is not None]
    power = exponent_interval([n for n, _, _ in told], [found for _, found, _ in told])
    if power is None:
        return
    sources = [source for _, _, source in told]
    (least, shortest, first), (most, longest, last) = told[0], told[-1]
    yield say(
        "The loops' time grows as n to the power of {power} ({low} to {high} by their intervals) over "
        "{n} sizes, from {shortest} at {least} to {longest} at {most}; their FLOPs as n³.",
        power=evidence("exponent", power.estimate, "count", *sources),
        low=evidence("exponent, low end", power.low, "count", *sources),
        high=evidence("exponent, high end", power.high, "count", *sources),
        n=evidence("sizes", len(told), "count", *sources),
        shortest=evidence("shortest time", shortest.estimate, "s", first),
        least=evidence("least n", least, "count", first),
        longest=evidence("longest time", longest.estimate, "s", last),
        most=evidence("largest n", most, "count", last),
    )


def shares(timed: Sequence[Timed], of: Calibration | None) -> Iterator[Conclusion]:
    """The best that each way reaches of the fastest square product that was measured on its device."""
    for piece in (LOOPS, NUMPY, TORCH):
        for precision in _precisions(timed, piece):
            known = [
                (share, each, square)
                for each in timed
                if (each.case.piece, each.case.precision) == (piece, precision)
                and (square := square_product(each, of)) is not None
                and (share := square_share(each, of)) is not None
            ]
            if not known:
                continue
            share, best, square = max(known, key=lambda told: told[0])
            yield say(
                "{piece} in {precision} reaches {rate} at most, at n = {n}: {share} of the fastest square "
                "product of torch measured here in {type}, {square} at n = {size}.",
                piece=piece,
                precision=precision,
                rate=evidence("rate", best.flops_per_s or 0.0, "flops_per_s", best.measurement),
                n=evidence("n", best.case.sizes[0], "count", best.measurement),
                share=evidence("share of the square product", share, "share", best.measurement, of),
                type=square.compute_type,
                square=evidence("square product's rate", square.flops_per_s, "flops_per_s", of),
                size=evidence("square product's n", square.size, "count", of),
            )


def equality(timed: Sequence[Timed]) -> Iterator[Conclusion]:
    """The largest difference from fp64 of each way."""
    for piece, precision in dict.fromkeys((e.case.piece, e.case.precision) for e in timed):
        known = [
            (each.work.difference, each)
            for each in timed
            if (each.case.piece, each.case.precision) == (piece, precision)
            and each.work is not None
            and each.work.difference is not None
        ]
        if not known:
            continue
        most, worst = max(known, key=lambda each: each[0])
        yield say(
            "The largest difference of {piece} in {precision} from fp64 is {most} of the largest value, "
            "at n = {n}.",
            piece=piece,
            precision=precision,
            most=evidence("largest difference from fp64", most, "count", worst.measurement),
            n=evidence("n", worst.case.sizes[0], "count", worst.measurement),
        )


def _precisions(timed: Sequence[Timed], piece: str) -> dict[str, None]:
    return dict.fromkeys(each.case.precision for each in timed if each.case.piece == piece)


def _by_size(timed: Sequence[Timed], piece: str) -> dict[int, Timed]:
    """The timed ones of a way by n, in the first precision that it has."""
    found: dict[int, Timed] = {}
    for each in timed:
        if each.case.piece == piece and each.median_s is not None:
            found.setdefault(each.case.sizes[0], each)
    return found
