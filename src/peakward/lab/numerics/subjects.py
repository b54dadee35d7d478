"""The subjects of cases that look at numbers once, each with its function; the distance from fp64 among them.

A hunt, which rewinds a training run, is in `lab/debugging/story.py`.
"""

from collections.abc import Callable
from typing import get_args

import msgspec

from peakward.lab.numerics.casts import look_at_functions, look_at_types
from peakward.lab.numerics.rounding import look_at_roundings
from peakward.lab.numerics.verify import verify_all
from peakward.records.case import (
    Configuration,
    ModelCase,
    NumericsCase,
    NumericsSubject,
    Pass,
    Precision,
    Workload,
)
from peakward.records.errors import PeakwardError
from peakward.records.lever import Claim, NumericsError
from peakward.records.numerics import Drift, Numerics

PASSES: tuple[Pass, ...] = ("forward", "forward_backward")
"""The one gives logits, the other a loss and gradients."""


def look(case: NumericsCase) -> Numerics:
    """Looks at the case's subject, on its device.

    Raises:
        PeakwardError: the subject has no such way, it takes other sizes, or a text or a model is missing.
    """
    return LOOKS[case.subject](case)


def look_at_drift(case: NumericsCase) -> Numerics:
    """How far logits, loss and gradients of the case's model are from fp64 in a precision, beside fp32: at
    full width, on few layers and tokens (`verify.reduced`). Sizes are the sequences and their length.

    Raises:
        PeakwardError: no precision or model, other sizes, or a precision that this device does not have.
    """
    if case.way not in get_args(Precision) or case.model is None or len(case.sizes) != 2:
        raise PeakwardError(
            f"expected a precision of {', '.join(get_args(Precision))}, a model and two sizes (batch, "
            f"length), got {case.way!r}, {case.model} and {case.sizes}"
        )
    batch_size, seq_len = case.sizes
    found: list[Drift] = []
    for pass_ in PASSES:
        base = ModelCase(
            model=case.model,
            workload=Workload(batch_size=batch_size, seq_len=seq_len, pass_=pass_, seed=case.seed),
            device=case.device,
        )
        precise = msgspec.structs.replace(base, configuration=Configuration(precision=case.way))  # type: ignore[arg-type]
        (verdict,) = verify_all((Claim(base=base, candidate=precise, declared="approximate"),))
        found += [_drift(each, case.way) for each in verdict.errors]
    return Numerics(drifts=tuple(found))


def _drift(found: NumericsError, way: str) -> Drift:
    if found.candidate_error is None or found.base_error is None or found.bound is None:
        raise PeakwardError(
            f"expected finite {found.quantity} in {way} and in fp32, got infinity or NaN: take smaller "
            "weights"
        )
    return Drift(
        quantity=found.quantity,  # type: ignore[arg-type]
        error=found.candidate_error,
        fp32_error=found.base_error,
        bound=found.bound,
    )


LOOKS: dict[NumericsSubject, Callable[[NumericsCase], Numerics]] = {
    "types": look_at_types,
    "operators": look_at_functions,
    "rounding": look_at_roundings,
    "drift": look_at_drift,
}
