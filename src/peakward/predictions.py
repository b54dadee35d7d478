"""Predictions from Python: `pw.floor`, `pw.predict`, `pw.plan` and `pw.plan_serving`, which run nothing."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from peakward.cli import machine, values
from peakward.cli import plan as planning
from peakward.cli.model_names import model
from peakward.cli.reproduce import to_command
from peakward.hardware.devices import device, match
from peakward.prediction.floor import floor as predicted
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.module import module_forecast
from peakward.prediction.planning.plan import plan as planned
from peakward.prediction.planning.serving import serving_plan
from peakward.records.calibration import Calibration
from peakward.records.case import ConfiguredCase, ModelCase, ModuleCase
from peakward.records.errors import PeakwardError
from peakward.records.inference import ServingWorkload
from peakward.records.model_shape import ModelShape
from peakward.records.plan import Forecast, Group, Parallel, Plan
from peakward.records.prediction import Prediction
from peakward.records.serving_plan import ServingPlan
from peakward.store.database import Store

if TYPE_CHECKING:
    import torch

DB = "peakward.db"
OF_A_MODULE = {"pass_", "loss", "autocast", "tokens"}


def floor(case: ModelCase, on: str | None = None, *, db: str = DB) -> Prediction:
    """The least time a step can take: on a catalogued device by its datasheet, else on this machine.

    Args:
        on: the device, such as "h100-sxm-80" or "h200"; None is this machine.

    Raises:
        PeakwardError: an unknown device, or a CPU's case on one; or, on this machine, no calibration stored
            in `db` and no catalogued device.
    """
    if on is not None:
        _expect_gpu(case)
        return predicted(case, calibration=None, device=device(on))
    where = machine.this_machine(case.device).environment
    known = match(where.device_name, where.device_memory_bytes)
    return predicted(case, calibration=_calibration(db, where.key), device=known)


def predict(
    case: "ConfiguredCase | torch.nn.Module",
    on: str,
    *,
    inputs: "Sequence[Any] | Mapping[str, Any]" = (),
    calibration: Calibration | None = None,
    price_per_gpu_hour: float | None = None,
    **settings: Any,
) -> Forecast:
    """What a case, or any module of PyTorch, would need on a catalogued device. Nothing is run.

    Args:
        case: with `device="cuda"`; or that of a module (`module_case`), eager and with its own attention; or
            a module itself, on whatever device its tensors are.
        on: the device, such as "h100-sxm-80" or "h200".
        inputs: of a module, by position or by name; only their shapes and types are used.
        calibration: of such a device (`calibrate`); its datasheet without.
        price_per_gpu_hour: in any currency, for the cost.
        settings: of a case `gpus` (of one node, 1) and `parallel` ("ddp" or "fsdp"); of a module
            `pass_` ("forward", "forward_backward", "train_step"), `loss` (a function of its output),
            `autocast` (a type) and `tokens` (of a step), as `lab.models.module_capture` has them.

    Raises:
        PeakwardError: an unknown device or one that the calibration is not of, settings that
            contradict one another, a CPU's case, a module whose operators depend on values. What
            else cannot be computed is absent, with its reason.
    """
    key, prices = device(on).key, _prices(price_per_gpu_hour)
    if isinstance(case, ModelCase):
        _expect_to_apply(case)
        group = planning.group(str(settings.pop("gpus", 1)), settings.pop("parallel", None))
        _expect_known(settings, inputs)
        (where,) = planning.sites((key,), calibration=calibration, group=group, prices=prices)
        return forecast(case, where)
    if isinstance(case, ModuleCase):
        from peakward.lab.levers.module_prediction import capture_case

        _expect_gpu(case)
        _expect_known(settings, inputs)
        (where,) = planning.sites((key,), calibration=calibration, group=None, prices=prices)
        told: Forecast = msgspec.structs.replace(
            module_forecast(capture_case(case), where), case=case
        )
        return told
    import torch

    from peakward.lab.models.module_capture import capture_module

    if not isinstance(case, torch.nn.Module):
        raise PeakwardError(
            f"expected a case or a module, got {type(case).__name__}: make one with `case`"
        )
    if unknown := settings.keys() - OF_A_MODULE:
        raise PeakwardError(
            f"expected settings of a module ({', '.join(sorted(OF_A_MODULE))}), got {', '.join(unknown)}"
        )
    if isinstance(inputs, torch.Tensor):
        raise PeakwardError("expected a sequence or a mapping of inputs, got a tensor: write (x,)")
    (where,) = planning.sites((key,), calibration=calibration, group=None, prices=prices)
    if isinstance(inputs, Mapping):
        capture = capture_module(case, (), inputs, **settings)
    else:
        capture = capture_module(case, inputs, **settings)
    return module_forecast(capture, where)


def plan(
    case: ModelCase,
    devices: Sequence[str],
    *,
    calibration: Calibration | None = None,
    gpus: int = 1,
    parallel: Parallel | None = None,
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
    _expect_to_apply(case)
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
    if memory_limit_bytes is not None:
        values.whole(str(memory_limit_bytes), "memory_limit_bytes", low=1, high=2**50)
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


def _expect_known(settings: dict[str, Any], inputs: object) -> None:
    """Of a case nothing is left over."""
    if settings or inputs != ():
        given = ", ".join(settings) or "inputs"
        raise PeakwardError(
            f"expected a module to set {given} of, got a case, which states its own"
        )


def _expect_several(devices: Sequence[str]) -> None:
    if isinstance(devices, str):
        raise PeakwardError(f"expected a sequence of devices, got {devices!r}: write [{devices!r}]")
    if not devices:
        raise PeakwardError(
            "expected a device to plan for, got none: `peakward devices` lists them"
        )


def _expect_gpu(case: ConfiguredCase) -> None:
    if case.device != "cuda":
        raise PeakwardError(
            'expected a case on a GPU, got one on a CPU: make it with device="cuda", or `floor` '
            "without a device bounds a CPU's here"
        )


def _expect_to_apply(case: ModelCase) -> None:
    _expect_gpu(case)
    planning.expect_to_apply(case)


def _prices(price: float | Sequence[float] | None) -> tuple[float, ...]:
    each = () if price is None else price if isinstance(price, Sequence) else (price,)
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
