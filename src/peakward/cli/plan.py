"""Predict a case on hardware that nobody has at hand: time, memory, cost, levers."""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, get_args

import msgspec
import tyro

from peakward.cli import options, output, serving, values
from peakward.cli.serving import Serving, ServingOptions
from peakward.cli.vocabulary import ViewOptions, Views, Work, WorkOptions, option
from peakward.hardware import devices
from peakward.levers.catalogue import case_obstacle
from peakward.prediction.planning.plan import plan
from peakward.prediction.planning.site import Site, site
from peakward.records import codec
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.plan import DevicePlan, Group, Parallel
from peakward.report import plan as pages
from peakward.report import serving_plan
from peakward.store.kept import kept

DEFAULT_DEVICES = "h100-sxm-80,a100-sxm-80,rtx-4090-24"
MAX_PRICE = 1e6
MAX_GPUS = 8
"""Of one node, as NVIDIA's HGX boards have them: more are not predicted."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Predict a case on hardware that nobody has at hand: time, memory, cost, levers.

    Nothing is run and no GPU is needed. A device is named by its key (`peakward devices`) or by
    parts of it: a100-80 stands for every A100 with 80 GB.
    """

    case: Work = WorkOptions()
    """What is to run."""
    serving: Serving = ServingOptions()
    """What is to be served."""
    lever: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], option("NAME,…", "none")] = ()
    """Levers pulled from the start: a short way to say the options above."""
    device: Annotated[str, option("NAME,…", DEFAULT_DEVICES)] = DEFAULT_DEVICES
    """Where it is to run."""
    calibration: Annotated[str | None, option("FILE", "the datasheets")] = None
    """What `peakward devices calibrate --json` printed on one of the devices: narrower intervals."""
    gpus: Annotated[str, option("N", "1")] = "1"
    """GPUs of one node, each with a batch of its own."""
    parallel: Annotated[str | None, option("ddp|fsdp", "ddp")] = None
    """How several GPUs share the model."""
    price: Annotated[str | None, option("AMOUNT,…", "none")] = None
    """Of a GPU for an hour, in any currency: one for all devices, or one for each."""
    operators: bool = False
    """Everything in the terminal too: memory by category, phases, operators."""
    views: Views = ViewOptions()


def main(given: Options, command: str) -> int:
    """Plan, print."""
    # The allocator's blocks are many and linked in rings: looking for such among them after every 700
    # new ones took 15% to 25% of a plan.
    gc.set_threshold(100_000)
    where = sites(
        values.split(given.device, "--device"),
        calibration=None if given.calibration is None else read_calibration(given.calibration),
        group=group(given.gpus, given.parallel),
        prices=() if given.price is None else _prices(given.price),
    )
    if given.serving.output_len is not None:
        return _serve(given, where, command)
    serving.refuse_without_output(given.serving)
    case = options.single_shape(given.case, "cuda", options.settings(given.lever, "--lever"))
    expect_to_apply(case)
    targets = output.targets(given.views)
    found = plan(case, where, command=command, keep=_kept)
    whole = pages.whole(found)
    screen = whole if given.operators else pages.summary(found)
    output.show(found, targets, as_json=given.views.json, document=whole, screen=screen)
    return 0


def _kept(case: ModelCase, on: Site, make: Callable[[], DevicePlan]) -> DevicePlan:
    """A device's part of a plan, once computed, is kept on disk."""
    parts = (case, on.device, on.calibration, on.group, on.price_per_gpu_hour)
    return kept(parts, DevicePlan, make)


def _serve(given: Options, where: Sequence[Site], command: str) -> int:
    plain = Options()
    for name in ("lever", "gpus", "parallel", "operators"):
        if getattr(given, name) != getattr(plain, name):
            raise PeakwardError(
                f"expected no --{name} beside --output-len: serving is planned for one GPU, by floors"
            )
    targets = output.targets(given.views)
    found = serving.planned(given.case, given.serving, where, command=command)
    document = serving_plan.document(found)
    output.show(found, targets, as_json=given.views.json, document=document)
    return 0


def sites(
    names: Sequence[str],
    *,
    calibration: Calibration | None,
    group: Group | None,
    prices: Sequence[float],
) -> tuple[Site, ...]:
    """The devices that the names mean, each once; one of them by its calibration.

    Args:
        prices: of a GPU for an hour: none, one for all devices, or one for each.

    Raises:
        PeakwardError: an unknown device; a calibration of the ceilings alone, or of none of them;
            another number of prices.
    """
    named = {each.key: each for name in names for each in devices.devices_named(name)}
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
            group=group,
            price_per_gpu_hour=paid[i % len(paid)],
        )
        for i, each in enumerate(named.values())
    )


def read_calibration(name: str) -> Calibration:
    """What `peakward devices calibrate --json` printed into the file of that name."""
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise PeakwardError(
            f"expected a calibration to read in {name}, got: {error.strerror}"
        ) from None
    return codec.from_json(data, Calibration)


def expect_to_apply(case: ModelCase) -> None:
    """Refuse settings that contradict one another; what one device cannot do, its plan says."""
    reason = case_obstacle(case, compute_capability=None, has_compiler=True)
    if reason is not None:
        raise PeakwardError(f"expected settings that can apply: {reason}")


def group(gpus: str, parallel: str | None) -> Group | None:
    """Several GPUs, or None for one."""
    n_gpus = values.whole(gpus, "--gpus", low=1, high=MAX_GPUS)
    known: tuple[Parallel, ...] = get_args(Parallel)
    values.one_of(parallel or "ddp", known, "a value of --parallel")
    if n_gpus == 1:
        if parallel is not None:
            raise PeakwardError(
                f"expected several GPUs beside --parallel {parallel}, got one: --gpus 8"
            )
        return None
    return Group(
        n_gpus=n_gpus, parallel=next(each for each in known if each == (parallel or "ddp"))
    )


def _prices(text: str) -> tuple[float, ...]:
    return tuple(values.amount(each.strip(), "--price", high=MAX_PRICE) for each in text.split(","))


def _expect_of(calibration: Calibration, named: Sequence[Device]) -> None:
    where = calibration.environment.device_name
    if calibration.rates is None:
        raise PeakwardError(
            f"expected a full calibration, got one of the ceilings of {where} alone: "
            "make one with `peakward devices calibrate --json`"
        )
    if not any(_is_of(calibration, each) for each in named):
        raise PeakwardError(
            f"expected a calibration of one of the devices, got one of {where}: "
            "name that device too, or leave the calibration out"
        )


def _is_of(calibration: Calibration, device: Device) -> bool:
    where = calibration.environment
    return devices.match(where.device_name, where.device_memory_bytes) == device
