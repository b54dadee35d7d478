"""Layouts of a training step on many GPUs, from Python: `pw.plan_layouts`, which runs nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

import msgspec

from peakward.api import cases
from peakward.api.predictions import checked_calibration, expect_to_apply, sites
from peakward.prediction.planning.site import Site
from peakward.records import check
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.layout import DataStrategy
from peakward.records.layouts import (
    STRATEGIES,
    AskedLayout,
    LayoutPlan,
    Network,
    ReduceType,
)

MOST_GPUS = 2**17
MOST_MICRO_BATCH = 4096
MOST_OVERSUBSCRIPTION = 1000.0


def plan_layouts(
    case: ModelCase,
    device: str,
    gpus: int,
    *,
    tensor: int | None = None,
    context: int | None = None,
    expert: int | None = None,
    pipeline: int | None = None,
    data: DataStrategy | None = None,
    micro_batch_size: int | None = None,
    reduce_type: ReduceType = "bf16",
    gpus_per_node: int | None = None,
    network_bytes_per_s: float | None = None,
    oversubscription: float = 1.0,
    calibration: Calibration | str | Path | None = None,
) -> LayoutPlan:
    """Every layout of a training step on so many GPUs that fits, the fastest first: `peakward plan --gpus`.

    Args:
        case: a training step in "bf16-mixed" or "bf16"; its batch is that of one GPU, so that all layouts
            compute as much. A checkpointing of "every-block" is kept, else it is tried with and without.
        device: the one kind of all GPUs, such as "h100-sxm-80".
        gpus: all of them.
        tensor, pipeline: sizes of these axes; None tries all.
        context: ranks that split each sequence; None tries those that keep 8,192 tokens of it.
        expert: ranks that split the experts of each block, of those that else share parameters; None tries
            all.
        data: "ddp", "overlapped", "zero1", "zero2" or "fsdp"; None tries all.
        micro_batch_size: sequences of a micro-batch; None tries 1 to 16.
        reduce_type: in which `zero2` and `fsdp` add gradients up, "bf16" or "fp32".
        gpus_per_node: None is as many as the device's link joins.
        network_bytes_per_s: between nodes, of one GPU in one direction; None is as the device is sold.
        oversubscription: of the network above a node's switch; 1 is non-blocking.
        calibration: of such a device, or the file that holds it.

    Raises:
        PeakwardError: a case or device that cannot be planned, axes that do not fit the GPUs, heads,
            layers or a sequence that an axis cannot split, a batch that no micro-batches divide.
    """
    known = cases.checked_model_case(case)
    measured = None if calibration is None else checked_calibration(calibration)
    return planned_layouts(
        known,
        one_site((check.line(device, "a device"),), measured),
        check.whole(gpus, "gpus", low=2, high=MOST_GPUS),
        asked=AskedLayout(
            tp=_size(tensor, "tensor"),
            cp=_size(context, "context"),
            ep=_size(expert, "expert"),
            pp=_size(pipeline, "pipeline"),
            data=None if data is None else strategy(data, "a data strategy"),
            micro_batch_size=None
            if micro_batch_size is None
            else check.whole(micro_batch_size, "micro_batch_size", low=1, high=MOST_MICRO_BATCH),
            reduce_type=checked_reduce_type(reduce_type, "a reduce_type"),
        ),
        network=Network(
            gpus_per_node=_size(gpus_per_node, "gpus_per_node"),
            bytes_per_s=None
            if network_bytes_per_s is None
            else check.rate(network_bytes_per_s, "network_bytes_per_s"),
            oversubscription=checked_oversubscription(oversubscription, "oversubscription"),
        ),
        command="# from Python: pw.plan_layouts",
    )


def planned_layouts(
    case: ModelCase,
    where: Site,
    n_gpus: int,
    *,
    asked: AskedLayout,
    network: Network,
    command: str,
    compile_is_free: bool = False,
) -> LayoutPlan:
    """The plan of checked values.

    Args:
        compile_is_free: whether a step whose compiled blocks cannot be predicted may be planned
            eagerly, which the plan then says.
    """
    # Not at the top: other plans need none of these.
    from peakward.prediction.parallel.layouts import layout_plan
    from peakward.prediction.parallel.rank_costs import expect_known

    expect_known(case)
    expect_to_apply(case)
    notes: tuple[str, ...] = ()
    settings = case.configuration
    if settings.checkpointing not in ("none", "every-block"):
        raise PeakwardError(
            "expected checkpointing none or every-block for layouts of many GPUs, got "
            f"{settings.checkpointing}"
        )
    if settings.checkpointing == "every-block":
        asked = msgspec.structs.replace(asked, checkpointing="every-block")
    if compile_is_free and (reason := _uncovered(case, where)) is not None:
        settings = msgspec.structs.replace(settings, compile="none")
        case = msgspec.structs.replace(case, configuration=settings)
        notes = (
            "Blocks are planned without compilation, which makes them slower; compiled ones cannot be "
            f"predicted: {reason}",
        )
    return layout_plan(
        case, where, n_gpus, asked=asked, network=network, command=command, notes=notes
    )


def _uncovered(case: ModelCase, where: Site) -> str | None:
    """Why compiled blocks cannot be predicted."""
    from peakward.prediction.parallel.rank_costs import CostTable

    if where.model is None:
        return None
    try:
        CostTable(case, where.model).of(1, 1, "fsdp")
    except PeakwardError as refusal:
        return str(refusal)
    return None


def one_site(names: Sequence[str], calibration: Calibration | None) -> Site:
    """The one device that the names mean.

    Raises:
        PeakwardError: several, or none.
    """
    found = sites(names, calibration=calibration, group=None, prices=())
    if len(found) != 1:
        raise PeakwardError(
            "expected one kind of device for layouts of many GPUs, got "
            f"{', '.join(each.device.key for each in found)}: name one"
        )
    return found[0]


def strategy(given: object, kind: str) -> DataStrategy:
    """One that a layout may be chosen with."""
    return cast(DataStrategy, check.one_of(given, STRATEGIES, kind))


def checked_reduce_type(given: object, kind: str) -> ReduceType:
    """A type that gradients are added up in."""
    return cast(ReduceType, check.one_of(given, get_args(ReduceType), kind))


def checked_oversubscription(given: object, name: str) -> float:
    """A factor from 1."""
    return check.number(given, name, "a factor from 1 to 1000", low=1.0, high=MOST_OVERSUBSCRIPTION)


def _size(given: object, name: str) -> int | None:
    return None if given is None else check.whole(given, name, low=1, high=MOST_GPUS)
