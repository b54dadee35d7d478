"""A case, or a serving workload, on several kinds of devices."""

from collections.abc import Callable, Iterable
from functools import partial

from peakward.prediction.inference.cost import serving_cost
from peakward.prediction.inference.floor import serving_floor
from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.site import Attempts, Site, gpu_hours
from peakward.records.case import ModelCase
from peakward.records.inference import ServingWorkload
from peakward.records.model_shape import ModelShape
from peakward.records.plan import DevicePlan, Plan, ServingPlan, ServingSite


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
    from peakward.prediction.planning.changes import Base, changes, composition
    from peakward.prediction.planning.forecast import forecast, largest_batch_size, longest_seq_len
    from peakward.prediction.planning.site import Attempts

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


# A serving workload on several kinds of devices: what each can do at best, and for how much.


def serving_plan(
    shape: ModelShape,
    workload: ServingWorkload,
    sites: Iterable[Site],
    *,
    limit_bytes: int | None,
    command: str,
) -> ServingPlan:
    """The workload on each.

    Args:
        limit_bytes: of memory, where less is to be used than a GPU has.
        command: what makes the plan again.

    Raises:
        PeakwardError: a workload that the model cannot serve.
    """
    cost = serving_cost(shape, workload)
    return ServingPlan(
        cost=cost,
        command=command,
        devices=tuple(
            _site(shape, workload, on, on.limit_bytes(limit_bytes), cost.memory.total_bytes)
            for on in sites
        ),
        n_parameters=n_parameters(shape),
    )


def _site(
    shape: ModelShape, workload: ServingWorkload, on: Site, limit_bytes: int, held_bytes: int
) -> ServingSite:
    attempts = Attempts()
    floor = attempts.of(
        "least times",
        lambda: serving_floor(
            shape,
            workload,
            calibration=on.calibration,
            device=on.device,
            memory_limit_bytes=limit_bytes,
        ),
    )
    price = on.price_per_gpu_hour
    cost = None
    if floor is not None and price is not None:
        cost = price * gpu_hours(floor.pace.output_tokens_per_s)
    return ServingSite(
        device=on.device.key,
        device_name=on.device.name,
        floor=floor,
        limit_bytes=limit_bytes,
        fits=held_bytes <= limit_bytes,
        price_per_gpu_hour=price,
        least_cost_per_million_tokens=cost,
        absent=attempts.absent,
    )
