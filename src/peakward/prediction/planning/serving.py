"""A serving workload on several kinds of devices: what each can do at best, and for how much."""

from collections.abc import Iterable

from peakward.prediction.inference.cost import serving_cost
from peakward.prediction.inference.floor import serving_floor
from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.attempt import Attempts
from peakward.prediction.planning.rates import gpu_hours
from peakward.prediction.planning.site import Site
from peakward.records.inference import ServingWorkload
from peakward.records.model_shape import ModelShape
from peakward.records.plan import ServingPlan, ServingSite


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
