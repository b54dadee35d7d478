"""Predictions from Python: `pw.floor`, `pw.predict`, `pw.plan` and `pw.plan_serving`, which run nothing."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from peakward.catalogue.devices import device, match
from peakward.cli import machine, values
from peakward.cli import plan as planning
from peakward.cli.model_names import model
from peakward.cli.reproduce import to_command
from peakward.prediction.floor import floor as predicted
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.plan import plan as planned
from peakward.prediction.planning.serving import serving_plan
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.inference import ServingWorkload
from peakward.records.model_shape import ModelShape
from peakward.records.plan import Forecast, Group, Parallel, Plan
from peakward.records.prediction import Prediction
from peakward.records.serving_plan import ServingPlan
from peakward.store.database import Store

DB = "peakward.db"


def floor(case: ModelCase, on: str | None = None, *, db: str = DB) -> Prediction:
    """The least time a step can take: on a catalogued device by its datasheet, else on this machine.

    Args:
        on: the device's key, such as "h100-sxm-80"; None is this machine.

    Raises:
        PeakwardError: an unknown device; or, on this machine, no calibration stored in `db` and no
            catalogued device.
    """
    if on is not None:
        return predicted(case, calibration=None, device=device(on))
    where = machine.this_machine(case.device).environment
    known = match(where.device_name, where.device_memory_bytes)
    return predicted(case, calibration=_calibration(db, where.key), device=known)


def predict(
    case: ModelCase,
    on: str,
    *,
    calibration: Calibration | None = None,
    gpus: int = 1,
    parallel: Parallel = "ddp",
    price_per_gpu_hour: float | None = None,
) -> Forecast:
    """What the case would need on a catalogued device: time, memory, rates, cost. Nothing is run.

    Args:
        case: with `device="cuda"`.
        on: a device's key, such as "h100-sxm-80".
        calibration: of such a device (`calibrate`); its datasheet without.
        gpus: of one node, each with a batch of its own.
        parallel: how several of them share the model.
        price_per_gpu_hour: in any currency, for the cost.

    Raises:
        PeakwardError: an unknown device or one that the calibration is not of, settings that
            contradict one another, a CPU's case. What else cannot be computed is absent, with its
            reason.
    """
    _expect_gpu(case)
    (where,) = planning.sites(
        (device(on).key,),
        calibration=calibration,
        group=planning.group(str(gpus), parallel),
        prices=_prices(price_per_gpu_hour),
    )
    return forecast(case, where)


def plan(
    case: ModelCase,
    devices: Sequence[str],
    *,
    calibration: Calibration | None = None,
    gpus: int = 1,
    parallel: Parallel = "ddp",
    price_per_gpu_hour: float | Sequence[float] | None = None,
) -> Plan:
    """`predict` on several devices, with the largest batch and what levers would do: `peakward plan`.

    Args:
        devices: keys, or parts of keys: "a100-80" means every A100 with 80 GB.
        price_per_gpu_hour: one for all devices, or one for each.

    Raises:
        PeakwardError: as `predict`.
    """
    _expect_several(devices)
    _expect_gpu(case)
    group, prices = planning.group(str(gpus), parallel), _prices(price_per_gpu_hour)
    where = planning.sites(devices, calibration=calibration, group=group, prices=prices)
    return planned(case, where, command=_plan_command(case, devices, group, prices))


def plan_serving(
    shape: str | ModelShape,
    workload: ServingWorkload,
    devices: Sequence[str],
    *,
    calibration: Calibration | None = None,
    price_per_gpu_hour: float | Sequence[float] | None = None,
    memory_limit_bytes: int | None = None,
) -> ServingPlan:
    """What serving can do at best on each device: `peakward plan --output-len`.

    Args:
        shape: as `case`.
        devices, calibration, price_per_gpu_hour: as `plan`.
        memory_limit_bytes: where less is to be used than a GPU has.

    Raises:
        PeakwardError: as `plan`; a workload that the model cannot serve.
    """
    _expect_several(devices)
    where = planning.sites(
        devices, calibration=calibration, group=None, prices=_prices(price_per_gpu_hour)
    )
    served = model(shape) if isinstance(shape, str) else shape
    return serving_plan(
        served,
        workload,
        where,
        limit_bytes=memory_limit_bytes,
        command="# from Python: pw.plan_serving",
    )


def _expect_several(devices: Sequence[str]) -> None:
    if isinstance(devices, str):
        raise PeakwardError(f"expected a sequence of devices, got {devices!r}: write [{devices!r}]")
    if not devices:
        raise PeakwardError(
            "expected a device to plan for, got none: `peakward devices` lists them"
        )


def _expect_gpu(case: ModelCase) -> None:
    if case.device != "cuda":
        raise PeakwardError(
            'expected a case on a GPU, got one on a CPU: make it with device="cuda", or `floor` '
            "bounds a CPU's"
        )
    planning.expect_to_apply(case)


def _prices(price: float | Sequence[float] | None) -> tuple[float, ...]:
    each = () if price is None else (price,) if isinstance(price, int | float) else price
    return tuple(
        values.amount(str(one), "price_per_gpu_hour", high=planning.MAX_PRICE) for one in each
    )


def _plan_command(
    case: ModelCase, devices: Sequence[str], group: Group | None, prices: tuple[float, ...]
) -> str:
    """The line that makes the same plan, where options say the case, but for a calibration."""
    said = to_command(case)
    if said is None:
        return "# from Python: no option of the command line says this case"
    words = shlex.split(said)[2:-2]  # Less `peakward bench` and `--device cuda`.
    words += ["--device", ",".join(devices)]
    if group is not None:
        words += ["--gpus", str(group.n_gpus), "--parallel", group.parallel]
    if prices:
        words += ["--price", ",".join(map(str, prices))]
    return shlex.join(["peakward", "plan", *words])


def _calibration(db: str, environment_key: str) -> Calibration | None:
    if not Path(db).exists():
        return None
    with Store.open_read_only(Path(db)) as store:
        return store.calibration(environment_key)
