"""What the numbers of `throughput` say of speed."""

from collections.abc import Sequence

from peakward.prediction.parameters import n_parameters
from peakward.records.case import Precision
from peakward.records.study import Conclusion
from peakward.studies.parts import evidence, say
from peakward.studies.power_law import exponent
from peakward.studies.readings import median_s
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
        ran = [c for c in cells if _is(c, precision, PASSES[-1]) and median_s(c.measurement)]
        largest = max((n_parameters(cell.case.model) for cell in ran), default=0)
        ran = [cell for cell in ran if n_parameters(cell.case.model) == largest]
        lengths = [cell.case.workload.seq_len for cell in ran]
        power = exponent(lengths, [median_s(cell.measurement) or 0.0 for cell in ran])
        if power is not None:
            proof = [cell.measurement for cell in ran]
            said.append(
                say(
                    "In {precision} the train step of {model} grows as the sequence length to the "
                    "power {power}, fitted from {low} to {high}.",
                    precision=precision,
                    model=ran[0].case.model.name,
                    power=evidence("exponent", power, "count", *proof),
                    low=evidence("shortest sequence", min(lengths), "count", *proof),
                    high=evidence("longest sequence", max(lengths), "count", *proof),
                )
            )
    return tuple(said)
