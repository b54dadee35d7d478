"""Predict time, memory, cost and levers on hardware not at hand."""

import gc
from collections.abc import Sequence
from typing import Annotated, TypeVar, cast, get_args

import msgspec
import tyro
from tyro.conf import OmitArgPrefixes

from peakward.api.cases import MAX_BATCH_SIZE, MAX_SEQ_LEN, is_source, left_out, model
from peakward.api.layouts import (
    MOST_GPUS,
    MOST_MICRO_BATCH,
    checked_oversubscription,
    checked_reduce_type,
    one_site,
    planned_layouts,
    strategy,
)
from peakward.api.predictions import (
    MAX_DRAFT,
    MAX_GPUS,
    MAX_GROUP,
    MAX_PRICE,
    expect_to_apply,
    gpu_group,
    planned,
    sites,
)
from peakward.cli import options, output, parse
from peakward.cli.vocabulary import ViewOptions, Views, Work, WorkOptions, option
from peakward.hardware.attention_backend import HOPPER
from peakward.levers.registry import AXES
from peakward.prediction.planning.site import Site
from peakward.records import check
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.inference import (
    CacheType,
    ComputeType,
    ServingWorkload,
    Speculation,
    WeightFormat,
    WeightType,
)
from peakward.records.layouts import AskedLayout, Network
from peakward.records.plan import DeviceGroup, Parallel, ServingPlan
from peakward.report import plan as pages
from peakward.report import serving_plan as serving_pages

T = TypeVar("T")

DEFAULT_DEVICES = "h100-sxm-80,a100-sxm-80,rtx-4090-24"
LONGEST_DEFAULT = 8192
"""Tokens of a sequence of a large training run, where the model takes as many and nothing was said."""
DEFAULT_MODEL, DEFAULT_BATCH_SIZE, DEFAULT_PROMPT_LEN = "llama-3-8b", "1", "512"
OF_STEPS_ALONE = (
    *("pass_", "accumulate"),
    *(axis.name for axis in AXES if axis.is_option and axis.name not in ("precision", "weights")),
)
"""Options that say how a step is carried out, of which a floor knows nothing."""


class ServingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Serving in place of a pass: floors of prefill and decode."""

    output_len: Annotated[str | None, option("N", "none: a pass is planned")] = None
    """Serve: `--batch-size` prompts of `--seq-len` tokens, then this many tokens for each."""
    cache: Annotated[str | None, option("TYPE", "bf16")] = None
    """How keys and values are stored: fp32, bf16, fp16, fp8, int8."""
    draft: Annotated[str | None, option("NAME", "none")] = None
    """Speculate with this model as the draft."""
    draft_len: Annotated[str | None, option("N", "4")] = None
    """Tokens that the draft proposes in a round."""
    acceptance: Annotated[str | None, option("SHARE", "0.7")] = None
    """Share of proposed tokens that the model accepts."""


Serving = OmitArgPrefixes[ServingOptions]


class LayoutOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Layouts of a training step on many GPUs: what is fixed of them, and how the GPUs are connected."""

    tensor: Annotated[str | None, option("N", "all that fit")] = None
    """GPUs that split the matrices of a block."""
    context: Annotated[str | None, option("N", "all that keep 8192 tokens")] = None
    """GPUs that split each sequence."""
    expert: Annotated[str | None, option("N", "all that fit")] = None
    """GPUs that split the experts, of those that else share parameters."""
    pipeline: Annotated[str | None, option("N", "all that fit")] = None
    """GPUs that split the blocks."""
    data: Annotated[str | None, option("STRATEGY", "all")] = None
    """ddp, overlapped, zero1, zero2 or fsdp."""
    micro_batch: Annotated[str | None, option("N", "1 to 16")] = None
    """Sequences of a micro-batch."""
    reduce_type: Annotated[str | None, option("TYPE", "bf16")] = None
    """The type in which zero2 and fsdp add gradients up: bf16 or fp32."""
    gpus_per_node: Annotated[str | None, option("N", "as its link joins")] = None
    """GPUs of one node."""
    network: Annotated[str | None, option("GB/S", "as the device is sold")] = None
    """Between nodes, of one GPU in one direction, in 10^9 bytes a second."""
    oversubscription: Annotated[str | None, option("N", "1")] = None
    """How many times fewer links the network has above a node's switch."""


Layouts = OmitArgPrefixes[LayoutOptions]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Predict time, memory, cost and levers on hardware not at hand.

    Nothing is run and no GPU is needed. A device is named by its key (`peakward devices`) or by
    parts of it: a100-80 stands for every A100 with 80 GB.
    """

    case: Work = WorkOptions()
    """The case to plan."""
    serving: Serving = ServingOptions()
    """The requests to serve."""
    lever: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], option("NAME,…", "none")] = ()
    """Levers pulled from the start: a short way to set options of the case."""
    device: Annotated[str, option("NAME,…", DEFAULT_DEVICES)] = DEFAULT_DEVICES
    """Where it is to run."""
    calibration: Annotated[str | None, option("FILE", "the datasheets")] = None
    """The output of `peakward devices calibrate --json` on one of the devices: narrower intervals."""
    gpus: Annotated[str, option("N", "1")] = "1"
    """GPUs, each with a batch of its own: plan every layout of a training step on them."""
    parallel: Annotated[str | None, option("ddp|fsdp", "all layouts")] = None
    """Plan this one way for the GPUs of one node, with intervals and levers."""
    layouts: Layouts = LayoutOptions()
    """The layouts."""
    price: Annotated[str | None, option("AMOUNT,…", "none")] = None
    """The price of a GPU for an hour, in any currency: one for all devices, or one for each."""
    operators: bool = False
    """Everything in the terminal too: memory by category, phases, operators."""
    views: Views = ViewOptions()


def main(given: Options, command: str) -> int:
    """Plan, print."""
    # The allocator's blocks are many and linked in rings: looking for such among them after every 700
    # new ones took 15% to 25% of a plan.
    gc.set_threshold(100_000)
    if (n_gpus := _n_gpus(given)) > 1 and given.parallel is None:
        return _lay_out(given, n_gpus, command)
    _refuse_without(given.layouts, "--gpus without --parallel", "it says how many GPUs there are")
    where = sites(
        parse.split(given.device, "--device"),
        calibration=None if given.calibration is None else Calibration.load(given.calibration),
        group=_group(n_gpus, given.parallel),
        prices=() if given.price is None else _prices(given.price),
    )
    if given.serving.output_len is not None:
        return _serve(given, where, command)
    _refuse_without(given.serving, "--output-len", "it says how many tokens are served")
    case = options.single(given.case, "cuda", options.settings(given.lever, "--lever"))
    if isinstance(case, ModelCase):
        expect_to_apply(case)
    targets = output.targets(given.views)
    note = left_out(options.only_name(given.case)) if case.workload.trains else None
    found = planned(case, where, command=command)
    found = msgspec.structs.replace(found, notes=() if note is None else (note,))
    whole = pages.whole(found)
    screen = whole if given.operators else pages.summary(found)
    output.show(found, targets, as_json=given.views.json, document=whole, screen=screen)
    return 0


def _serve(given: Options, where: Sequence[Site], command: str) -> int:
    plain = Options()
    for name in ("lever", "gpus", "parallel", "operators"):
        if getattr(given, name) != getattr(plain, name):
            raise PeakwardError(
                f"expected no --{name} beside --output-len: serving is planned for one GPU, by floors"
            )
    targets = output.targets(given.views)
    found = _planned(given.case, given.serving, where, command=command)
    document = serving_pages.document(found)
    output.show(found, targets, as_json=given.views.json, document=document)
    return 0


def _n_gpus(given: Options) -> int:
    most = MOST_GPUS if given.parallel is None else MAX_GPUS
    n_gpus = parse.whole(given.gpus, "--gpus", low=1, high=most)
    if n_gpus > 1 and given.serving.output_len is not None:
        raise PeakwardError(
            "expected no --gpus beside --output-len: serving is planned for one GPU, by floors"
        )
    return n_gpus


def _group(n_gpus: int, parallel: str | None) -> DeviceGroup | None:
    if parallel is not None:
        check.one_of(parallel, get_args(Parallel), "a value of --parallel")
    return gpu_group(n_gpus, cast(Parallel | None, parallel))


def _lay_out(given: Options, n_gpus: int, command: str) -> int:
    """Layouts of a training step on many GPUs."""
    from peakward.report import layouts as layout_pages

    _refuse_without(given.serving, "--output-len", "it says how many tokens are served")
    if given.price is not None:
        raise PeakwardError(
            "expected no --price beside --gpus: layouts are ranked by tokens/s of the same GPUs"
        )
    name = options.only_name(given.case)
    if is_source(name):
        raise PeakwardError(
            "expected one GPU for a module, got several: plan the preset or shape that is nearest to it"
        )
    calibration = None if given.calibration is None else Calibration.load(given.calibration)
    names = parse.split(given.device, "--device")
    where = one_site(names[:1] if given.device == DEFAULT_DEVICES else names, calibration)
    start = options.settings(given.lever, "--lever")
    (shape,) = _one(options.shapes(given.case, DEFAULT_MODEL), "--model")
    work = msgspec.structs.replace(
        given.case,
        batch_size=given.case.batch_size or DEFAULT_BATCH_SIZE,
        seq_len=given.case.seq_len or str(min(shape.max_seq_len, LONGEST_DEFAULT)),
    )
    chosen = {
        field: value
        for field, value in _usual(where).items()
        if field not in start and getattr(work, field) is None
    }
    case = options.single(work, "cuda", start | chosen)
    assert isinstance(case, ModelCase)
    targets = output.targets(given.views)
    found = planned_layouts(
        case,
        where,
        n_gpus,
        asked=_asked(given.layouts),
        network=_network(given.layouts),
        command=command,
        compile_is_free="compile" in chosen,
    )
    whole = layout_pages.whole(found)
    screen = whole if given.operators else layout_pages.summary(found)
    output.show(found, targets, as_json=given.views.json, document=whole, screen=screen)
    return 0


def _usual(where: Site) -> dict[str, str]:
    """The settings of a large training run, where nothing else was said."""
    capability = where.device.compute_capability
    is_hopper = capability is not None and capability.value >= HOPPER
    return {
        "precision": "bf16-mixed",
        "attention": "sdpa-cudnn" if is_hopper else "sdpa",
        "compile": "default",
        "optimizer": "adamw-fused",
    }


def _asked(given: LayoutOptions) -> AskedLayout:
    def size(text: str | None, name: str, high: int = MOST_GPUS) -> int | None:
        return None if text is None else parse.whole(text, name, low=1, high=high)

    return AskedLayout(
        tp=size(given.tensor, "--tensor"),
        cp=size(given.context, "--context"),
        ep=size(given.expert, "--expert"),
        pp=size(given.pipeline, "--pipeline"),
        data=None if given.data is None else strategy(given.data, "a value of --data"),
        micro_batch_size=size(given.micro_batch, "--micro-batch", MOST_MICRO_BATCH),
        reduce_type=checked_reduce_type(given.reduce_type or "bf16", "a value of --reduce-type"),
    )


def _network(given: LayoutOptions) -> Network:
    per_node, rate, factor = given.gpus_per_node, given.network, given.oversubscription
    return Network(
        gpus_per_node=None
        if per_node is None
        else parse.whole(per_node, "--gpus-per-node", low=1, high=MOST_GPUS),
        bytes_per_s=None
        if rate is None
        else 1e9 * check.rate(parse.number(rate, "--network"), "--network"),
        oversubscription=1.0
        if factor is None
        else checked_oversubscription(
            parse.number(factor, "--oversubscription"), "--oversubscription"
        ),
    )


def _prices(text: str) -> tuple[float, ...]:
    return tuple(parse.amount(each.strip(), "--price", high=MAX_PRICE) for each in text.split(","))


def _planned(
    work: WorkOptions, serving: ServingOptions, sites: Sequence[Site], *, command: str
) -> ServingPlan:
    """The workload that the options mean, on each device.

    Raises:
        PeakwardError: a value that is not one, an option of steps alone, or a workload that the model
            cannot serve.
    """
    from peakward.prediction.planning.plan import serving_plan

    assert serving.output_len is not None
    _refuse_steps(work)
    (shape,) = _one(options.shapes(work, DEFAULT_MODEL), "--model")
    (batch_size,) = _one(
        options.sizes(work.batch_size or DEFAULT_BATCH_SIZE, "--batch-size", MAX_BATCH_SIZE),
        "--batch-size",
    )
    (prompt_len,) = _one(
        options.sizes(work.seq_len or DEFAULT_PROMPT_LEN, "--seq-len", MAX_SEQ_LEN),
        "--seq-len",
    )
    compute = cast(
        ComputeType,
        check.one_of(work.precision or "bf16", get_args(ComputeType), "a type to serve in"),
    )
    workload = ServingWorkload(
        batch_size=batch_size,
        prompt_len=prompt_len,
        output_len=parse.whole(serving.output_len, "--output-len", low=2, high=MAX_SEQ_LEN),
        weights=_weights(work.weights, compute),
        cache_type=cast(
            CacheType,
            check.one_of(serving.cache or "bf16", get_args(CacheType), "a value of --cache"),
        ),
        compute_type=compute,
        speculation=_speculation(serving),
    )
    limits = [None] if work.memory_limit is None else options.memory_limits(work.memory_limit)
    (limit_bytes,) = _one(limits, "--memory-limit")
    return serving_plan(shape, workload, sites, limit_bytes=limit_bytes, command=command)


def _refuse_without(given: msgspec.Struct, needed: str, why: str) -> None:
    """Options that mean nothing without another one."""
    for field in given.__struct_fields__:
        if getattr(given, field) is not None:
            name = "--" + field.replace("_", "-")
            raise PeakwardError(f"expected {needed} beside {name}, got none: {why}")


def _refuse_steps(work: WorkOptions) -> None:
    for field in OF_STEPS_ALONE:
        given, plain = getattr(work, field), getattr(WorkOptions(), field)
        if given != plain:
            raise PeakwardError(
                f"expected no --{field.strip('_').replace('_', '-')} beside --output-len, got {given}: "
                "floors of serving do not depend on it"
            )


def _weights(text: str | None, compute: ComputeType) -> WeightFormat:
    if text is None:
        return WeightFormat(type="fp32" if compute == "tf32" else compute)
    kind, colon, group = text.partition(":")
    check.one_of(kind, get_args(WeightType), "a value of --weights")
    size = parse.whole(group, "--weights TYPE:GROUP", low=1, high=MAX_GROUP) if colon else None
    return WeightFormat(type=cast(WeightType, kind), group_size=size)


def _speculation(serving: ServingOptions) -> Speculation | None:
    if serving.draft is None:
        for field in ("draft_len", "acceptance"):
            if getattr(serving, field) is not None:
                raise PeakwardError(
                    f"expected --draft beside --{field.replace('_', '-')}, got none: name the model "
                    "that proposes tokens"
                )
        return None
    return Speculation(
        draft=model(serving.draft),
        draft_len=parse.whole(serving.draft_len or "4", "--draft-len", low=1, high=MAX_DRAFT),
        acceptance_rate=parse.share(serving.acceptance or "0.7", "--acceptance"),
    )


def _one(found: Sequence[T], name: str) -> Sequence[T]:
    if len(found) != 1:
        raise PeakwardError(
            f"expected one value of {name} to serve with, got {len(found)}: name one"
        )
    return found
