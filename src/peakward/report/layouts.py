"""The report of a plan of layouts: which one to take and how to launch it, then all others."""

from collections.abc import Sequence

from peakward.records.layouts import LayoutForecast, LayoutPlan, RankMemory
from peakward.records.study import Cell, Column, Table
from peakward.report.cases import label, model
from peakward.report.document import (
    Block,
    Code,
    Command,
    Document,
    Fact,
    Facts,
    Items,
    Note,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell

N_ON_SCREEN = 12
SCRIPT = "train.py"
BOUNDS = {
    "compute": "arithmetic",
    "data": "gathering parameters and reducing gradients",
    "tensor": "sums over the tensor axis, which nothing hides",
    "context": "gathering keys and values over the context axis, which nothing hides",
    "expert": "sending tokens to their experts and back, which nothing hides",
    "pipeline": "waiting for other stages",
    "update": "the update",
}
CONVENTIONS = (
    "Nothing was run. A block's time is that of `peakward plan` for one GPU, on a model of a rank's share of "
    "the heads and the feed-forward width. Collectives take what NCCL's own model says of rings and trees, "
    "with its choice between them by size; large sums reach 80% of a node's link, gatherings and reductions "
    "to shards 59%, and both 94% of the network. Arithmetic beside one loses 0.6 of its time. Under zero2 "
    "and fsdp parameters and gradients are also cast and copied, and the host takes 3.0 ms a block and 0.8 "
    "ms a collective, as seen on one machine with two H200s, unless the step is one CUDA graph.",
    "The engine is Peakward's over torch's: DistributedDataParallel (ddp), the same with a sharded optimizer "
    "(zero1), fully_shard without and with resharding after the forward pass (zero2, fsdp), DTensor's tensor "
    "parallelism (tp), torch.distributed.pipelining (pp). overlapped reduces gradients in place. Of "
    "bf16-mixed, ddp and zero1 have autocast over fp32 parameters, 16 bytes a parameter; zero2 and fsdp keep "
    "fp32 shards, 16 bytes over the ranks, and compute in bf16. Both accounts differ from bf16 weights with "
    "an fp32 master.",
    "Micro-batches without a pipeline, and pipelines, add gradients up whole on each rank before they are "
    "reduced once: 2 bytes a parameter of the rank's stage under zero2 and fsdp.",
    "data: waiting for collectives of the data axis, and what hidden ones slow. tensor: waiting for those of "
    "the tensor axis. cp: waiting for keys and values. bubble: waiting for other stages, transfers between "
    "them included. Shares are of the step.",
    "Memory is tensors and the CUDA context, of the rank with most; fragments of the allocator and NCCL's "
    "buffers come on top. Available memory is 97% of what the driver reports. GB/s is 10**9 bytes a second, "
    "of one GPU in one direction. Not planned: sequence parallelism, sums inside of switches.",
    "cp splits each sequence in 2·cp chunks, of which a rank has an early and a late one: equal shares of "
    "the causal scores. Keys and values of whole sequences are gathered for every block, in the backward "
    "pass again, and their gradients are reduced to where they belong; nothing hides that (Llama 3, section "
    "3.3.2). Ranks of cp share parameters as those of the data axis do. It is tried where a rank keeps 8,192 "
    "tokens of a sequence, and with fewer by --context.",
    "ep splits the experts of each block over ranks that else share parameters; tokens are sent to them and "
    "back, in both passes. Tokens are dealt evenly, and nothing hides that. Experts are gathered and reduced "
    "over the ranks that have the same ones.",
)


def summary(plan: LayoutPlan) -> Document:
    """The layout to take, its launch, and the best others, on one screen."""
    return Document(
        title=_title(plan),
        headline=_headline(plan),
        blocks=(
            *_opening(plan),
            TableBlock(table=_layouts(plan, N_ON_SCREEN)),
            *_communication(plan),
        ),
    )


def whole(plan: LayoutPlan) -> Document:
    """The same with every layout that the plan holds, memory by category, and the conventions."""
    sections = (
        Section(title="Memory of one GPU", blocks=(TableBlock(table=_memory(plan)),)),
        Section(title="Left out", blocks=(Items(texts=plan.refused),)),
        Section(title="Conventions", blocks=(Items(texts=CONVENTIONS),), folded=True),
    )
    return Document(
        title=_title(plan),
        headline=_headline(plan),
        blocks=(*_opening(plan), TableBlock(table=_layouts(plan, None)), *_communication(plan)),
        sections=tuple(
            each
            for each, is_there in zip(sections, (plan.layouts, plan.refused, True), strict=True)
            if is_there
        ),
    )


def _title(plan: LayoutPlan) -> str:
    return f"Plan: {label(plan.case)}, {plan.n_gpus:,} × {plan.device_name}"


def _headline(plan: LayoutPlan) -> str:
    if not plan.layouts:
        assert plan.smallest_bytes is not None
        least, limit = (
            format_cell(each, "bytes") for each in (plan.smallest_bytes, plan.limit_bytes)
        )
        return (
            f"No layout fits: the smallest needs {least} a GPU, of {limit}. Take more GPUs, or fewer or "
            "shorter sequences"
        )
    best = plan.layouts[0]
    held, limit = (
        format_cell(each, "bytes") for each in (best.memory.total_bytes, plan.limit_bytes)
    )
    return (
        f"Take {_name(best)}: {format_cell(best.tokens_per_s, 'tokens_per_s')}, "
        f"{format_cell(best.step_s, 's')} a step, {held} of {limit}"
    )


def _name(each: LayoutForecast) -> str:
    """Such as `fsdp 8 × tp 8, 4 micro-batches of 1, every block recomputed`."""
    layout, size = each.layout, each.micro_batch_size
    parts = [layout.name]
    if layout.pp > 1 and layout.stages_per_rank > 1:
        parts[0] += f" ({layout.stages_per_rank} stages each)"
    if layout.n_micro_batches > 1:
        parts.append(f"{layout.n_micro_batches} micro-batches of {size}")
    if each.checkpointing != "none":
        parts.append("every block recomputed")
    if layout.captured:
        parts.append("as one CUDA graph")
    return ", ".join(parts)


def _opening(plan: LayoutPlan) -> tuple[Block, ...]:
    blocks: list[Block] = [Note(text=text) for text in plan.notes]
    if plan.layouts:
        blocks += [Command(text=launch(plan)), Code(text=layout_code(plan.layouts[0]))]
        blocks += [Note(text=text) for text in _beyond_engine(plan)]
    return (*blocks, Facts(facts=tuple(_facts(plan))))


def _beyond_engine(plan: LayoutPlan) -> tuple[str, ...]:
    """Says that no engine of ours runs the layout to take, and which it runs."""
    best = plan.layouts[0].layout
    if best.cp == best.ep == 1:
        return ()
    which = " or ".join(
        name for name, size in (("context", best.cp), ("expert", best.ep)) if size > 1
    )
    said = f"This is planned and not run: Peakward's own engine has no {which} parallelism"
    runs = next((each for each in plan.layouts if each.layout.cp == each.layout.ep == 1), None)
    if runs is None:
        shown = (
            "" if plan.n_fitting == len(plan.layouts) else f" of the {len(plan.layouts)} fastest"
        )
        return (f"{said}, and none{shown} of these layouts is without.",)
    rate = format_cell(runs.tokens_per_s, "tokens_per_s")
    return (f"{said}. The fastest without: {_name(runs)}, {rate}.",)


def launch(plan: LayoutPlan) -> str:
    """The torchrun line of each node."""
    per_node = plan.interconnect.gpus_per_node
    n_nodes = plan.n_gpus // per_node
    if n_nodes == 1:
        return f"torchrun --standalone --nproc-per-node {per_node} {SCRIPT}"
    return (
        f"torchrun --nnodes {n_nodes} --nproc-per-node {per_node} --rdzv-backend c10d "
        f"--rdzv-endpoint HOST:29500 {SCRIPT}"
    )


def layout_code(best: LayoutForecast) -> str:
    """The layout as the engine takes it."""
    layout = best.layout
    plain = type(layout)()
    given = {
        name: getattr(layout, name)
        for name in layout.__struct_fields__
        if getattr(layout, name) != getattr(plain, name)
    }
    said = (
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
        for name, value in given.items()
    )
    return f"Layout({', '.join(said)})"


def _facts(plan: LayoutPlan) -> list[Fact]:
    work, links = plan.case.workload, plan.interconnect
    n_tokens = round(plan.n_gpus * work.tokens_per_step)
    inside = f"{links.gpus_per_node} GPUs over {links.link_name}, {_rate(links.link_bytes_per_s)}"
    facts = {
        "model": model(plan.case.model, plan.n_parameters),
        "step": f"{work.batch_size} × {work.seq_len} tokens a GPU, {n_tokens:,} in all",
        "inside a node": inside,
    }
    if links.network_bytes_per_s is not None:
        kind = "non-blocking"
        if links.oversubscription > 1:
            kind = f"oversubscribed {links.oversubscription:g} to 1"
        rate = _rate(links.network_bytes_per_s)
        facts["between nodes"] = f"{links.network_name}, {rate} a GPU, {kind} (assumed)"
    if plan.layouts:
        if plan.layouts[0].checkpointing != "none":
            facts["lever"] = "checkpointing: every block is computed again in the backward pass"
        facts["limited by"] = _limit(plan.layouts[0])
    facts["fitting"] = f"{plan.n_fitting} layouts; {plan.n_too_large} need more memory"
    return [Fact(name=name, value=value) for name, value in facts.items()]


def _limit(best: LayoutForecast) -> str:
    share = {
        "compute": best.compute_s,
        "data": best.data_s,
        "tensor": best.tensor_s,
        "context": best.context_s,
        "expert": best.expert_s,
        "pipeline": best.pipeline_s,
        "update": best.update_s,
    }[best.bound]
    return f"{BOUNDS[best.bound]}, {format_cell(share / best.step_s, 'share')} of the step"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:g} GB/s"


def _layouts(plan: LayoutPlan, n: int | None) -> Table:
    shown = plan.layouts[:n]
    more = plan.n_fitting - len(shown)
    more_axes = [
        axis for axis in ("cp", "ep") if any(getattr(each.layout, axis) > 1 for each in shown)
    ]
    waits = ", ".join(("tp", *more_axes, "bubble"))
    notes = ["v: stages a rank", "r: every block recomputed", f"{waits}: waiting for them"]
    if any(each.layout.captured for each in shown):
        notes.insert(2, "g: as one CUDA graph")
    return Table(
        title="Layouts that fit, the fastest first",
        columns=(
            Column(name="layout", unit="name"),
            Column(name="micro"),
            Column(name="tokens/s", unit="large_count"),
            Column(name="MFU"),
            Column(name="data"),
            Column(name="tp"),
            *(Column(name=axis) for axis in more_axes),
            Column(name="bubble"),
            Column(name="memory", unit="bytes"),
        ),
        rows=tuple(_row(each, more_axes) for each in shown),
        note="; ".join([*notes, f"{more} slower ones fit too"] if more else notes),
    )


def _place(each: LayoutForecast) -> tuple[Cell, Cell]:
    return _short(each), f"{each.layout.n_micro_batches} × {each.micro_batch_size}"


def _row(each: LayoutForecast, more_axes: Sequence[str]) -> tuple[Cell, ...]:
    waited = {"cp": each.context_s, "ep": each.expert_s}
    return (
        *_place(each),
        each.tokens_per_s,
        _percent(each.mfu),
        _percent(each.data_s / each.step_s),
        _percent(each.tensor_s / each.step_s if each.layout.tp > 1 else None),
        *(
            _percent(waited[axis] / each.step_s if getattr(each.layout, axis) > 1 else None)
            for axis in more_axes
        ),
        _percent(each.bubble if each.layout.pp > 1 else None),
        each.memory.total_bytes,
    )


def _percent(share: float | None) -> str | None:
    """Whole ones: the columns stand side by side on 80 characters."""
    return None if share is None else f"{100 * share:.0f}%"


def _short(each: LayoutForecast) -> str:
    """Such as `fsdp 8 tp 2 pp 4 v2 r`."""
    layout = each.layout
    parts = [f"{name} {size}" for name, size in layout.axes]
    if layout.ep > 1:
        parts.insert(1, f"ep {layout.ep}")
    if layout.stages_per_rank > 1:
        parts.append(f"v{layout.stages_per_rank}")
    if each.checkpointing != "none":
        parts.append("r")
    if layout.captured:
        parts.append("g")
    return " ".join(parts)


def _communication(plan: LayoutPlan) -> tuple[Block, ...]:
    """The traffic of the layout to take, in a step."""
    if not plan.layouts or not plan.layouts[0].traffic:
        return ()
    best = plan.layouts[0]
    waited = {
        "dp": best.data_s,
        "tp": best.tensor_s,
        "cp": best.context_s,
        "ep": best.expert_s,
        "pp": best.pipeline_s,
    }
    rows = tuple(
        (
            each.axis,
            each.collective,
            each.n_calls,
            each.sent_bytes,
            each.time_s,
            waited[each.axis],
            each.algorithm,
        )
        for each in best.traffic
    )
    table = Table(
        title=f"Communication of {best.layout.name}, a step of one GPU",
        columns=(
            Column(name="axis", unit="name"),
            Column(name="collective", unit="name"),
            Column(name="calls", unit="count"),
            Column(name="sent", unit="bytes"),
            Column(name="time", unit="s"),
            Column(name="exposed", unit="s"),
            Column(name="NCCL"),
        ),
        rows=rows,
        note="exposed: of the whole axis",
    )
    return (TableBlock(table=table),)


def _memory(plan: LayoutPlan) -> Table:
    names = RankMemory.__struct_fields__
    heads = (name.removesuffix("_bytes").replace("_", " ") for name in names)
    return Table(
        title="",
        columns=(
            Column(name="layout", unit="name"),
            Column(name="micro"),
            *(Column(name=name, unit="bytes") for name in heads),
        ),
        rows=tuple(
            (*_place(each), *(getattr(each.memory, name) for name in names))
            for each in plan.layouts[:N_ON_SCREEN]
        ),
    )
