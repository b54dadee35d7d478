"""Predictions from Python: `pw.floor`, `pw.predict`, `pw.plan` and `pw.plan_serving`, which run nothing."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from peakward.api import cases
from peakward.api.machine import this_machine
from peakward.api.reproduce import to_command
from peakward.api.session import DB
from peakward.hardware import devices as catalogue
from peakward.hardware.attention_backend import HOPPER, ComputeCapability
from peakward.levers.catalogue import case_obstacle
from peakward.levers.registry import PLUGINS
from peakward.prediction.floor import floor as predicted
from peakward.prediction.planning.plan import plan as plan_of
from peakward.prediction.planning.site import Site, site
from peakward.records import check
from peakward.records.calibration import Calibration
from peakward.records.case import ConfiguredCase, ModelCase, ModuleCase, ModulePass
from peakward.records.device import Device
from peakward.records.errors import PeakwardError, quoted
from peakward.records.inference import ServingWorkload
from peakward.records.model_shape import ModelShape
from peakward.records.op_graph import ModuleCapture
from peakward.records.plan import DeviceGroup, DevicePlan, Forecast, Parallel, Plan, ServingPlan
from peakward.records.prediction import Prediction
from peakward.store.kept import kept

if TYPE_CHECKING:
    import torch

OF_A_MODULE = {"pass_", "loss", "autocast", "tokens"}
OF_A_CASE = {"gpus", "parallel"}
MAX_PRICE = 1e6
MAX_GPUS = 8
"""GPUs of one node, as NVIDIA's HGX boards have them: more are not predicted."""
MAX_GROUP = 65_536
"""Inputs of a quantised matrix that share a scale."""
MAX_DRAFT = 1024


def device(text: str) -> Device:
    """The one accelerator that a text means: a key, as "h100-sxm-80", a part of one, or a driver's name.

    Raises:
        PeakwardError: it means none, or several; names them, or the nearest ones.
    """
    return catalogue.device(check.line(text, "a device"))


def floor(case: ModelCase, on: str | None = None, *, db: str = DB) -> Prediction:
    """The least time a step can take: on a catalogued device by its datasheet, else on this machine.

    Args:
        on: the device, such as "h100-sxm-80" or "h200"; None is this machine.

    Raises:
        PeakwardError: an unknown device, or a CPU's case on one; or, on this machine, no calibration stored
            in `db` and no catalogued device.
    """
    case, place = cases.checked_model_case(case), check.path(db, "db")
    if on is not None:
        _expect_gpu(case)
        return predicted(case, calibration=None, device=device(on))
    where = this_machine(case.device).environment
    known = catalogue.match(where.device_name, where.device_memory_bytes)
    return predicted(case, calibration=_calibration(place, where.key), device=known)


def predict(
    case: "ConfiguredCase | torch.nn.Module",
    on: str,
    *,
    inputs: "Sequence[Any] | Mapping[str, Any]" = (),
    calibration: Calibration | str | Path | None = None,
    price_per_gpu_hour: float | None = None,
    **settings: Any,
) -> Forecast:
    """Predict what a case, or any module of PyTorch, needs on a catalogued device. Nothing is run.

    Args:
        case: with `device="cuda"`; or that of a module (`module_case`), eager or compiled, with its own
            attention; or a module itself, on whatever device its tensors are, compiled where it is, and by
            itself where it is inside DistributedDataParallel.
        on: the device, such as "h100-sxm-80" or "h200".
        inputs: of a module, by position or by name. Their shapes and types count, and the values of masks,
            positions and lengths where these decide what runs.
        calibration: of such a device (`calibrate`), or the file that holds it; its datasheet without. One of
            another host than this makes the interval wider, for that host's own costs.
        price_per_gpu_hour: in any currency, for the cost.
        settings: of a case `gpus` (of one node, 1) and `parallel` ("ddp" or "fsdp"); of a module
            `pass_` ("forward", "forward_backward", "train_step"), `loss` (a function of its output),
            `autocast` (a type) and `tokens` (of a step), as `lab.models.module_capture` has them.

    Raises:
        PeakwardError: an unknown device or one that the calibration is not of, settings that
            contradict one another, a CPU's case, a module whose operators depend on values. What
            else cannot be computed is absent, with its reason.
    """
    key, prices = device(on).key, _prices(price_per_gpu_hour, 1)
    measured = None if calibration is None else checked_calibration(calibration)
    if isinstance(case, ModelCase | ModuleCase):
        known = cases.checked(case)
        group = _case_settings(known, inputs, settings)
        (where,) = sites((key,), calibration=measured, group=group, prices=prices)
        return _of_case(known, where)
    from peakward.lab.levers.module_prediction import capture_live
    from peakward.lab.models import data_parallel, given_module
    from peakward.prediction.planning.module import module_forecast

    module = given_module.expect_module(case)
    given = _module_settings(settings)
    args, kwargs = given_module.inputs(inputs)
    (where,) = sites((key,), calibration=measured, group=None, prices=prices)
    capture = capture_live(module, args, kwargs, **given, compute_capability=_capability(where))
    found = module_forecast(capture, where)
    left_out = data_parallel.not_predicted(module)
    return msgspec.structs.replace(found, absent=(*found.absent, *left_out))


def _case_settings(
    case: ConfiguredCase, inputs: object, settings: dict[str, Any]
) -> DeviceGroup | None:
    """The group of GPUs that a case is set; nothing is left over."""
    known = OF_A_CASE if isinstance(case, ModelCase) else set()
    left_over = [name for name in settings if name not in known]
    if left_over or not isinstance(inputs, tuple) or inputs:
        given = ", ".join(left_over) or "inputs"
        raise PeakwardError(
            f"expected a module to set {given} of, got a case, which states its own"
        )
    return _group(settings.get("gpus", 1), settings.get("parallel"))


def _of_case(case: ConfiguredCase, where: Site) -> Forecast:
    if isinstance(case, ModelCase):
        # Not at the top: a plan that was kept needs no model of time or memory, 60 ms of a start.
        from peakward.prediction.planning.forecast import forecast

        expect_to_apply(case)
        return forecast(case, where)
    return _module_plan(case, (where,), command="").devices[0].forecast


def _module_plan(case: ModuleCase, where: Sequence[Site], *, command: str) -> Plan:
    """A capture serves all devices of one compute capability."""
    from peakward.lab.levers.module_prediction import capture_as_it_comes
    from peakward.prediction.planning.module import module_plan

    _expect_gpu(case)
    if any(each.group is not None for each in where):
        raise PeakwardError(
            "expected one GPU for a module, got several: plan the preset or shape that is nearest to it"
        )
    seen: dict[ComputeCapability, tuple[ModuleCase, ModuleCapture]] = {}

    def captured(on: Site) -> tuple[ModuleCase, ModuleCapture]:
        key = _capability(on)
        if key not in seen:
            seen[key] = capture_as_it_comes(case, key)
        return seen[key]

    return module_plan(where, captured, command=command)


def _capability(where: Site) -> ComputeCapability:
    """The device's, on which a captured module's attention depends; an H100's where it has none."""
    known = where.device.compute_capability
    return HOPPER if known is None else known.value


def _module_settings(settings: dict[str, Any]) -> dict[str, Any]:
    if unknown := settings.keys() - OF_A_MODULE:
        raise PeakwardError(
            f"expected settings of a module ({', '.join(sorted(OF_A_MODULE))}), got {', '.join(unknown)}"
        )
    if "pass_" in settings:
        check.one_of(settings["pass_"], get_args(ModulePass), "a pass")
    if settings.get("loss") is not None:
        check.function(settings["loss"], "loss", "a function of the module's output")
    if settings.get("tokens") is not None:
        check.rate(settings["tokens"], "tokens")
    return settings


def plan(
    case: ConfiguredCase,
    devices: Sequence[str],
    *,
    calibration: Calibration | str | Path | None = None,
    gpus: int = 1,
    parallel: Parallel | None = None,
    price_per_gpu_hour: float | Sequence[float] | None = None,
) -> Plan:
    """`predict` on several devices, with the largest batch and what levers would do: `peakward plan`.

    Args:
        case: as `predict`; of a module without the largest batch and levers.
        devices: keys, or parts of keys: "a100-80" means every A100 with 80 GB.
        price_per_gpu_hour: one for all devices, or one for each.

    Raises:
        PeakwardError: as `predict`.
    """
    names = _names(devices)
    case = cases.checked(case)
    if isinstance(case, ModelCase):
        expect_to_apply(case)
    measured = None if calibration is None else checked_calibration(calibration)
    group, prices = _group(gpus, parallel), _prices(price_per_gpu_hour)
    where = sites(names, calibration=measured, group=group, prices=prices)
    return planned(case, where, command=_plan_command(case, names, group, prices))


def planned(case: ConfiguredCase, where: Sequence[Site], *, command: str) -> Plan:
    """The plan of a checked case; a device's part of a decoder's, once computed, is kept on disk."""
    if isinstance(case, ModuleCase):
        return _module_plan(case, where, command=command)

    def keep(case: ModelCase, on: Site, make: Callable[[], DevicePlan]) -> DevicePlan:
        here = on.model is not None and on.model.host_is_known
        parts = (case, on.device, on.calibration, here, on.group, on.price_per_gpu_hour, PLUGINS)
        return kept(parts, DevicePlan, make)

    return plan_of(case, where, command=command, keep=keep)


def plan_serving(
    shape: str | ModelShape,
    workload: ServingWorkload,
    devices: Sequence[str],
    *,
    calibration: Calibration | str | Path | None = None,
    price_per_gpu_hour: float | Sequence[float] | None = None,
    memory_limit_bytes: int | None = None,
) -> ServingPlan:
    """Predict what serving can do at best on each device: `peakward plan --output-len`.

    Args:
        shape: as `case`.
        devices, calibration, price_per_gpu_hour: as `plan`.
        memory_limit_bytes: where less is to be used than a GPU has.

    Raises:
        PeakwardError: as `plan`; a workload that the model cannot serve.
    """
    from peakward.prediction.planning.plan import serving_plan

    names = _names(devices)
    if memory_limit_bytes is not None:
        check.whole(memory_limit_bytes, "memory_limit_bytes", low=1, high=2**50)
    measured = None if calibration is None else checked_calibration(calibration)
    served = cases.model_shape(shape)
    return serving_plan(
        served,
        _checked_workload(workload),
        sites(names, calibration=measured, group=None, prices=_prices(price_per_gpu_hour)),
        limit_bytes=memory_limit_bytes,
        command="# from Python: pw.plan_serving",
    )


def sites(
    names: Sequence[str],
    *,
    calibration: Calibration | None,
    group: DeviceGroup | None,
    prices: Sequence[float],
) -> tuple[Site, ...]:
    """The devices that the names mean, each once; one of them by its calibration.

    Args:
        prices: of a GPU for an hour: none, one for all devices, or one for each.

    Raises:
        PeakwardError: an unknown device; a calibration of the ceilings alone, or of none of them;
            another number of prices.
    """
    named = {each.key: each for name in names for each in catalogue.devices_named(name)}
    if calibration is not None:
        _expect_of(calibration, tuple(named.values()))
    paid: Sequence[float | None] = prices or (None,)
    if len(paid) not in (1, len(named)):
        raise PeakwardError(
            f"expected one price, or one for each device ({len(named)}), got {len(paid)}: "
            "name as many as there are devices"
        )
    return tuple(
        site(
            each,
            calibration=calibration if calibration and _is_of(calibration, each) else None,
            host_is_known=calibration is not None and _is_of_this_host(calibration),
            group=group,
            price_per_gpu_hour=paid[i % len(paid)],
        )
        for i, each in enumerate(named.values())
    )


def expect_to_apply(case: ModelCase) -> None:
    """Refuse a CPU's case, and settings that contradict one another; what one device cannot do, its plan
    says."""
    _expect_gpu(case)
    reason = case_obstacle(case, compute_capability=None, has_compiler=True)
    if reason is not None:
        raise PeakwardError(f"expected settings that can apply: {reason}")


def gpu_group(n_gpus: int, parallel: Parallel | None) -> DeviceGroup | None:
    """Several GPUs of one node, or None for one."""
    if n_gpus > 1:
        return DeviceGroup(n_gpus=n_gpus, parallel=parallel or "ddp")
    if parallel is not None:
        raise PeakwardError(
            f"expected several GPUs beside --parallel {parallel}, got one: --gpus 8"
        )
    return None


def _group(gpus: int, parallel: Parallel | None) -> DeviceGroup | None:
    n_gpus = check.whole(gpus, "gpus", low=1, high=MAX_GPUS)
    if parallel is not None:
        check.one_of(parallel, get_args(Parallel), "a way to share the model for parallel")
    return gpu_group(n_gpus, parallel)


def _names(devices: Sequence[str]) -> tuple[str, ...]:
    if isinstance(devices, str):
        raise PeakwardError(
            f"expected a sequence of devices, got {quoted(devices)}: write [{quoted(devices)}]"
        )
    names = check.texts(devices, "a device", "devices")
    if not names:
        raise PeakwardError(
            "expected a device to plan for, got none: `peakward devices` lists them"
        )
    return names


def _expect_gpu(case: ConfiguredCase) -> None:
    if case.device != "cuda":
        raise PeakwardError(
            'expected a case on a GPU, got one on a CPU: make it with device="cuda", or `floor` '
            "without a device bounds a CPU's here"
        )


def _prices(price: float | Sequence[float] | None, most: int | None = None) -> tuple[float, ...]:
    """None, one for all devices, or one for each of them where there may be several."""
    if price is None:
        return ()
    several = most is None and isinstance(price, Sequence) and not isinstance(price, str | bytes)
    each: Sequence[object] = price if several else (price,)  # type: ignore[assignment]
    return tuple(check.amount(one, "price_per_gpu_hour", high=MAX_PRICE) for one in each)


def checked_calibration(given: Calibration | str | Path) -> Calibration:
    """A calibration, or the one in a file."""
    if isinstance(given, str | Path):
        return Calibration.load(check.path(given, "calibration"))
    return check.record(
        given,
        Calibration,
        "a calibration",
        "make one with `pw.calibrate`, or give the file that holds one (`pw.Calibration.load`)",
    )


def _checked_workload(given: ServingWorkload) -> ServingWorkload:
    """Held to the sizes that the command line takes."""
    work = check.record(
        given, ServingWorkload, "a workload to serve", "make one with `pw.ServingWorkload`"
    )
    check.whole(work.batch_size, "batch_size", low=1, high=cases.MAX_BATCH_SIZE)
    check.whole(work.prompt_len, "prompt_len", low=1, high=cases.MAX_SEQ_LEN)
    check.whole(work.output_len, "output_len", low=2, high=cases.MAX_SEQ_LEN)
    if work.weights.group_size is not None:
        check.whole(work.weights.group_size, "group_size", low=1, high=MAX_GROUP)
    if work.speculation is not None:
        cases.model_shape(work.speculation.draft)
        check.whole(work.speculation.draft_len, "draft_len", low=1, high=MAX_DRAFT)
        check.number(
            work.speculation.acceptance_rate,
            "acceptance_rate",
            "a share from 0 to 1",
            low=0,
            high=1,
        )
    return work


def _expect_of(calibration: Calibration, named: Sequence[Device]) -> None:
    where = calibration.environment.device_name
    if calibration.rates is None:
        raise PeakwardError(
            f"expected a full calibration, got one of the ceilings of {where} alone: make one with "
            "`peakward devices calibrate --json >calibration.json`"
        )
    if not any(_is_of(calibration, each) for each in named):
        raise PeakwardError(
            f"expected a calibration of one of the devices, got one of {where}: "
            "name that device too, or leave the calibration out"
        )


def _is_of_this_host(calibration: Calibration) -> bool:
    from peakward.lab.measure import probe

    return calibration.host == probe.host()


def _is_of(calibration: Calibration, device: Device) -> bool:
    where = calibration.environment
    return catalogue.match(where.device_name, where.device_memory_bytes) == device


def _plan_command(
    case: ConfiguredCase,
    devices: Sequence[str],
    group: DeviceGroup | None,
    prices: tuple[float, ...],
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


def _calibration(db: Path, environment_key: str) -> Calibration | None:
    if not db.exists():
        return None
    from peakward.store.database import Store

    with Store.open_read_only(db) as store:
        return store.calibration(environment_key)
