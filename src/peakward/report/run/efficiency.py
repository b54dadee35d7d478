"""How well a configuration uses its device, computed from stored numbers."""

import msgspec

from peakward.records.errors import PeakwardError
from peakward.records.prediction import Prediction
from peakward.report.format import format_cell
from peakward.report.run.investigation import Point


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Rates and shares of one configuration. A field is None where an input of it is unknown."""

    step_s: float | None
    tokens_per_s: float | None
    flops_per_s: float | None
    """Model FLOPs over the median step time."""
    mfu: float | None
    """`flops_per_s` over the datasheet's dense peak of the compute type."""
    ceiling_share: float | None
    """`flops_per_s` over the matmul rate measured on this device in that type."""
    floor_share: float | None
    """The floor over the median step time. 1: the step could not be faster."""


def efficiency(point: Point) -> Efficiency:
    """The efficiency of a measured configuration.

    Raises:
        PeakwardError: an MFU above 1, which no device can have: the arithmetic is wrong somewhere.
    """
    step_s, prediction = point.step_s, point.prediction
    rate = quotient(model_flops(prediction), step_s)
    mfu = quotient(rate, prediction.peak_flops_per_s) if prediction else None
    if mfu is not None and mfu > 1:
        raise PeakwardError(_impossible(point, mfu), exit_code=1)
    return Efficiency(
        step_s=step_s,
        tokens_per_s=quotient(point.case.tokens_per_step, step_s),
        flops_per_s=rate,
        mfu=mfu,
        ceiling_share=quotient(rate, measured_matmul_rate(prediction)),
        floor_share=quotient(prediction.floor_s, step_s) if prediction else None,
    )


def model_flops(prediction: Prediction | None) -> float | None:
    """Model FLOPs of one step."""
    return sum(phase.flops for phase in prediction.phases) if prediction else None


def compulsory_bytes(prediction: Prediction) -> float:
    """Bytes that one step must move."""
    return sum(phase.bytes for phase in prediction.phases)


def measured_matmul_rate(prediction: Prediction | None) -> float | None:
    """The measured matmul rate behind the ceiling share; None for a datasheet's rate."""
    if prediction is None or prediction.source == "datasheet":
        return None
    return prediction.matmul_flops_per_s


def quotient(part: float | None, whole: float | None) -> float | None:
    """`part` over `whole`; None where one of them is unknown."""
    return None if part is None or not whole else part / whole


def _impossible(point: Point, mfu: float) -> str:
    peak = point.prediction.peak_flops_per_s if point.prediction else None
    return (
        f"expected an MFU of at most 100%, got {mfu:.2%} of "
        f"{format_cell(peak, 'flops_per_s')} for {point.name}: the FLOPs, the time or the device's "
        "row in the catalogue is wrong; please report it with the study's record"
    )
