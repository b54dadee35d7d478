"""The report of a plan: a screen, or everything."""

from peakward.records.case import ModelCase
from peakward.records.plan import DevicePlan, Forecast, Plan
from peakward.report import plan_tables
from peakward.report.cases import label, model
from peakward.report.document import (
    Block,
    Document,
    Fact,
    Facts,
    Items,
    Note,
    Paragraph,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell, format_spread
from peakward.report.provenance import MODEL_FLOPS

N_OPERATORS = 12
CONVENTIONS = (
    "Nothing was run. A device's time follows from each operator's shapes and the device's "
    "rates, the host's from the number of calls, and the step's from whichever of the two is "
    "behind. Intervals held nine in ten measured cases on an H200 and an H100. For rates from "
    "a datasheet, and for hosts other than an H200's, they are wider by judgement. No group "
    "of GPUs was measured: the interval of its waiting time runs from everything hidden to "
    "nothing hidden, at rates that users report.",
    f"{MODEL_FLOPS} MFU is model FLOP/s over the datasheet's dense peak of the compute type.",
    "Floor: the sum over phases of FLOPs over the peak rate or compulsory bytes over the "
    "bandwidth, whichever is longer; under fsdp the update is a GPU's share. No step can be "
    "faster, with two exceptions: a model that stays in the last cache, and experts whose "
    "router has favourites, because compulsory bytes assume random choices.",
    "Needed memory is what torch's allocator reserves, plus 0.75 GiB for the CUDA context. "
    "Attention kernels and workspaces are those of an H100 on every device. Available memory "
    "is 97% of what the driver reports, where that is known, else 90% of the memory as sold.",
    "Largest batch size: sequences in a GPU's micro-batch at the requested length. Longest "
    "sequence: at the requested batch size, in steps of 64 tokens. GiB is 2**30 bytes, GB/s "
    "10**9 bytes a second.",
)


def summary(plan: Plan) -> Document:
    """Time, memory, cost and levers on one screen."""
    return Document(
        title=_title(plan),
        headline=_headline(plan),
        blocks=(*_notes(plan), *_model(plan), *_opening(plan)),
        sections=tuple(each for each in (_levers(plan), _absent(plan)) if each.blocks),
    )


def whole(plan: Plan) -> Document:
    """The same, then memory by category, phases and operators."""
    sections = (_levers(plan), _memory(plan), _time(plan), _absent(plan), _conventions())
    return Document(
        title=_title(plan),
        headline=_headline(plan),
        blocks=(*_notes(plan), *_model(plan), *_opening(plan)),
        sections=tuple(each for each in sections if each.blocks),
    )


def _title(plan: Plan) -> str:
    group = plan.devices[0].forecast.group
    gpus = "" if group is None else f", {group.n_gpus} GPUs, {group.parallel}"
    return f"Plan: {label(plan.case)}{gpus}"


def _headline(plan: Plan) -> str:
    timed = [each for each in plan.devices if each.forecast.step_s is not None]
    fitting = [each for each in timed if each.forecast.fits]
    if fitting:
        return _said(min(fitting, key=_step_s).forecast) + ", and it fits"
    composed = [
        each
        for each in timed
        if each.composition is not None and each.composition.fits and each.composition.step_s
    ]
    if composed:
        best = min(composed, key=_composed_s)
        assert best.composition is not None and best.composition.step_s is not None
        levers = " + ".join(best.composition.levers)
        step = format_spread(best.composition.step_s, "s")
        return f"{_as_it_is(plan, timed)} as it is; with {levers} on {best.forecast.device_name}: {step}"
    if timed:
        fastest = min(timed, key=_step_s).forecast
        known = fastest.fits is False
        return _said(fastest) + (", if it fitted" if known else "; whether it fits is not known")
    return "No step time could be computed"


def _as_it_is(plan: Plan, timed: list[DevicePlan]) -> str:
    """A sentence for devices with a known time, none of which the case is known to fit."""
    which = "" if len(timed) == len(plan.devices) else " whose time is known"
    known = all(each.forecast.fits is False for each in timed)
    return f"It fits no device{which}" if known else f"It is not known to fit a device{which}"


def _said(found: Forecast) -> str:
    assert found.step_s is not None
    return f"{found.device_name}: {format_spread(found.step_s, 's')} a step"


def _step_s(each: DevicePlan) -> float:
    assert each.forecast.step_s is not None
    return each.forecast.step_s.estimate


def _composed_s(each: DevicePlan) -> float:
    assert each.composition is not None and each.composition.step_s is not None
    return each.composition.step_s.estimate


def _model(plan: Plan) -> tuple[Block, ...]:
    """The model with its parameters; empty where the plan did not store them."""
    if plan.n_parameters is None:
        return ()
    shape = plan.case.model if isinstance(plan.case, ModelCase) else None
    said = f"{plan.n_parameters:,} parameters" if shape is None else model(shape, plan.n_parameters)
    return (Facts(facts=(Fact(name="model", value=said),)),)


def _notes(plan: Plan) -> tuple[Block, ...]:
    without = [each.forecast.device_name for each in plan.devices if each.forecast.fits is False]
    notes = list(plan.notes)
    if without:
        notes.append(
            f"The case does not fit the memory of {', '.join(without)}. Times there assume that it "
            "does."
        )
    timed = any(each.forecast.step_s for each in plan.devices)
    if isinstance(plan.case, ModelCase) and plan.case.model.n_experts > 1 and timed:
        notes.append(
            "Tokens are assumed to spread evenly over the experts. Intervals are those of "
            "dense models: four mixtures on an H100 took 4% to 6% longer than predicted."
        )
    if plan.case.workload.caches and timed:
        notes.append(
            "Intervals are those of passes without a cache: from a calibration, 50 of 56 captured "
            "decode steps on an H200 and 15 of 16 on an H100 lay within them, and the others took "
            "17% less to 15% more than predicted."
        )
    return tuple(Note(text=text) for text in notes)


def _opening(plan: Plan) -> tuple[Block, ...]:
    found = (
        plan_tables.speed(plan),
        plan_tables.memory(plan),
        plan_tables.communication(plan),
        plan_tables.cost(plan),
    )
    return tuple(TableBlock(table=table) for table in found if table.rows)


def _levers(plan: Plan) -> Section:
    found = [plan_tables.changes(each) for each in plan.devices]
    return Section(
        title="What levers would change",
        blocks=tuple(TableBlock(table=table) for table in found if table.rows),
    )


def _memory(plan: Plan) -> Section:
    found = plan.devices[0].forecast.memory
    if found is None:
        return Section(title="Memory at its peak", blocks=())
    basis = "" if found.basis == "step" else " These figures are of the same case uncompiled."
    text = (
        f"One GPU allocates at most {format_cell(found.peak_bytes, 'bytes')}, in the phase "
        f"{found.phase}.{basis}"
    )
    return Section(
        title="Memory at its peak",
        blocks=(Paragraph(text=text), TableBlock(table=plan_tables.split(found.peak))),
    )


def _time(plan: Plan) -> Section:
    blocks: list[Block] = []
    for each in plan.devices:
        if each.forecast.time is not None:
            blocks.append(TableBlock(table=plan_tables.phases(each.forecast)))
            blocks.append(TableBlock(table=plan_tables.operators(each.forecast, N_OPERATORS)))
    return Section(title="Where the time goes", blocks=tuple(blocks))


def _absent(plan: Plan) -> Section:
    table = plan_tables.absent(plan)
    blocks = (TableBlock(table=table),) if table.rows else ()
    return Section(title="Not computed", blocks=blocks)


def _conventions() -> Section:
    return Section(title="Conventions", blocks=(Items(texts=CONVENTIONS),), folded=True)
