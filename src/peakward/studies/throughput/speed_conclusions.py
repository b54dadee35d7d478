"""What the numbers of `throughput` say of speed."""

from collections.abc import Sequence

from peakward.prediction.parameters import n_parameters
from peakward.records.case import Precision
from peakward.records.measurement import Interval
from peakward.records.study import Conclusion
from peakward.studies.parts import evidence, say
from peakward.studies.power_law import exponent_interval
from peakward.studies.readings import time
from peakward.studies.speedup import gains
from peakward.studies.throughput.speed import BASE, PASSES, Cell


def speed(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """What each lower precision gains in each pass, then how time grows with the sequence."""
    said: list[Conclusion] = []
    for pass_ in PASSES:
        for precision in _lower(cells):
            wanted = [cell.speedup for cell in cells if _is(cell, precision, pass_)]
            said += gains(wanted, f"{precision} {pass_}", BASE)
    return (*said, *_growth(cells))


def _lower(cells: Sequence[Cell]) -> tuple[Precision, ...]:
    found = dict.fromkeys(cell.case.configuration.precision for cell in cells)
    return tuple(each for each in found if each != BASE)


def _is(cell: Cell, precision: Precision, pass_: str) -> bool:
    return cell.case.configuration.precision == precision and cell.case.workload.pass_ == pass_


def _growth(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """The exponent of the train step's time in the sequence length, of the largest size that ran."""
    said = []
    for precision in (BASE, *_lower(cells)):
        ran = [
            (cell, found)
            for cell in cells
            if _is(cell, precision, PASSES[-1]) and (found := time(cell.measurement)) is not None
        ]
        largest = max((n_parameters(cell.case.model) for cell, _ in ran), default=0)
        ran = [(cell, found) for cell, found in ran if n_parameters(cell.case.model) == largest]
        lengths = [cell.case.workload.seq_len for cell, _ in ran]
        power = exponent_interval(lengths, [found for _, found in ran])
        if power is not None:
            said.append(_grown(precision, ran, power))
    return tuple(said)


def _grown(
    precision: Precision, ran: Sequence[tuple[Cell, Interval]], power: Interval
) -> Conclusion:
    proof = [cell.measurement for cell, _ in ran]
    (first, shortest), (last, longest) = ran[0], ran[-1]
    return say(
        "In {precision} the train step of {model} grows as the sequence length to the power {power} "
        "({lower} to {upper} by the intervals of the times), fitted from {low} ({shortest}) to {high} "
        "({longest}).",
        precision=precision,
        model=last.case.model.name,
        power=evidence("exponent", power.estimate, "count", *proof),
        lower=evidence("exponent, low end", power.low, "count", *proof),
        upper=evidence("exponent, high end", power.high, "count", *proof),
        low=evidence("shortest sequence", first.case.workload.seq_len, "count", proof[0]),
        shortest=evidence("time at the shortest", shortest.estimate, "s", proof[0]),
        high=evidence("longest sequence", last.case.workload.seq_len, "count", proof[-1]),
        longest=evidence("time at the longest", longest.estimate, "s", proof[-1]),
    )
