"""A case on several kinds of devices."""

from collections.abc import Callable, Iterable
from functools import partial

from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.site import Site
from peakward.records.case import ModelCase
from peakward.records.plan import DevicePlan, Plan


def plan(
    case: ModelCase,
    sites: Iterable[Site],
    *,
    command: str,
    keep: Callable[[ModelCase, Site, Callable[[], DevicePlan]], DevicePlan] | None = None,
) -> Plan:
    """The case on each device.

    Args:
        case: what is to run.
        sites: where.
        command: what makes the plan again.
        keep: gives a device's part of the plan from where it was kept, or makes it.
    """
    return Plan(
        case=case,
        command=command,
        devices=tuple(
            device_plan(case, on)
            if keep is None
            else keep(case, on, partial(device_plan, case, on))
            for on in sites
        ),
        n_parameters=n_parameters(case.model),
    )


def device_plan(case: ModelCase, on: Site) -> DevicePlan:
    """The case there, its largest batch, and what levers would do."""
    # Not before: a plan that was kept needs none of these, which are half of the command's start.
    from peakward.prediction.planning.attempt import Attempts
    from peakward.prediction.planning.changes import Base, changes
    from peakward.prediction.planning.composition import composition
    from peakward.prediction.planning.forecast import forecast
    from peakward.prediction.planning.room import largest_batch_size, longest_seq_len

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
