"""A case on several kinds of devices."""

from collections.abc import Iterable

from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.attempt import Attempts
from peakward.prediction.planning.changes import Base, changes
from peakward.prediction.planning.composition import composition
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.room import largest_batch_size, longest_seq_len
from peakward.prediction.planning.site import Site
from peakward.records.case import ModelCase
from peakward.records.plan import DevicePlan, Plan


def plan(case: ModelCase, sites: Iterable[Site], *, command: str) -> Plan:
    """The case on each; `command` is what makes the plan again."""
    return Plan(
        case=case,
        command=command,
        devices=tuple(device_plan(case, on) for on in sites),
        n_parameters=n_parameters(case.model),
    )


def device_plan(case: ModelCase, on: Site) -> DevicePlan:
    """The case there, its largest batch, and what levers would do."""
    base = Base(case, forecast(case, on))
    attempts = Attempts()
    largest = attempts.of("largest batch", lambda: largest_batch_size(case, on))
    longest = attempts.of("longest sequence", lambda: longest_seq_len(case, on))
    alone = changes(base, on)
    together = composition(base, alone, on)
    return DevicePlan(
        forecast=base.forecast,
        price_per_gpu_hour=on.price_per_gpu_hour,
        largest_batch_size=largest,
        longest_seq_len=longest,
        changes=alone,
        composition=None if together is None else together.change,
        composed_case=None if together is None else together.case,
        absent=attempts.absent,
    )
