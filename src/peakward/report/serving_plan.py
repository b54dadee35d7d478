"""The report of a serving plan."""

from peakward.records.inference import Cost, ServingWorkload
from peakward.records.plan import ServingPlan, ServingSite
from peakward.records.study import Cell, Column, Table
from peakward.report.cases import model
from peakward.report.columns import without_empty
from peakward.report.document import (
    Block,
    Document,
    Fact,
    Facts,
    Items,
    Note,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell
from peakward.report.plan_tables import fits

CONVENTIONS = (
    "Times are floors: each step takes the longer of its model FLOPs over the device's matmul "
    "rate and its compulsory bytes (weights, cache, token ids) over the bandwidth. Launches, "
    "norms, softmax, sampling, scheduling and the unpacking of quantised weights take no "
    "time. No engine is faster, with three exceptions: a model that stays in the last cache, "
    "experts whose router has favourites, and, by a little, a calibrated bandwidth, which is "
    "that of a copy.",
    "A step of mean cost stands for all decode steps. Request: from the prompt to the last token.",
    "Memory is weights and cache at the full length; activations, workspace and the context "
    "come on top. Available memory is 97% of what the driver reports, where that is known, "
    "else 90% of the memory as sold.",
    "Speculation gives expected values; each proposed token is accepted independently "
    "(Leviathan et al. 2023).",
)


def document(plan: ServingPlan) -> Document:
    """Times, memory and cost by device, then the work itself."""
    tables = (_times(plan), _memory(plan), _speculation(plan), _work(plan))
    return Document(
        title=_title(plan),
        headline=_headline(plan),
        blocks=(
            _facts(plan),
            *_notes(plan),
            *(TableBlock(table=without_empty(each)) for each in tables if each.rows),
        ),
        sections=(Section(title="Conventions", blocks=(Items(texts=CONVENTIONS),), folded=True),),
    )


def _title(plan: ServingPlan) -> str:
    work = plan.cost.workload
    return (
        f"Plan: {plan.cost.model.name} serving {work.batch_size} × "
        f"({work.prompt_len} + {work.output_len}) tokens"
    )


def _headline(plan: ServingPlan) -> str:
    able = [each for each in plan.devices if each.fits and each.floor is not None]
    if not able:
        fit = [each.device_name for each in plan.devices if each.fits]
        told = f"fit {', '.join(fit)}" if fit else "fit none of the devices"
        return f"Weights and cache {told}; no time is known where they fit"
    best = max(able, key=_tokens_per_s)
    assert best.floor is not None
    pace = best.floor.pace
    return (
        f"{best.device_name}: at most {format_cell(pace.output_tokens_per_s, 'tokens_per_s')}; "
        f"the first token after at least {format_cell(pace.time_to_first_token_s, 's')}, then "
        f"one every {format_cell(pace.time_per_output_token_s, 's')} at least"
    )


def _tokens_per_s(each: ServingSite) -> float:
    return 0.0 if each.floor is None else each.floor.pace.output_tokens_per_s


def _facts(plan: ServingPlan) -> Facts:
    work = plan.cost.workload
    known = (
        {} if plan.n_parameters is None else {"model": model(plan.cost.model, plan.n_parameters)}
    )
    facts = {
        **known,
        "weights": _weights(work),
        "cache": work.cache_type,
        "products in": work.compute_type,
    }
    if work.speculation is not None:
        draft = work.speculation
        facts["draft"] = (
            f"{draft.draft.name}, {draft.draft_len} tokens a round, each accepted with a "
            f"probability of {format_cell(draft.acceptance_rate, 'share')}"
        )
    return Facts(facts=tuple(Fact(name=name, value=value) for name, value in facts.items()))


IN_BLOCKS_ALONE = ("fp8", "int8", "int4")
"""The types that `WeightFormat` applies to the blocks' matrices alone."""


def _weights(work: ServingWorkload) -> str:
    """The stored types: "int4 in the blocks' matrices, a scale for 128; embedding, head and norms in 16
    bits"."""
    stored, group = work.weights.type, work.weights.group_size
    if stored not in IN_BLOCKS_ALONE:
        return stored
    scale = "" if group is None else f", a scale for {group}"
    return f"{stored} in the blocks' matrices{scale}; embedding, head and norms in 16 bits"


def _notes(plan: ServingPlan) -> tuple[Block, ...]:
    without = [each.device_name for each in plan.devices if not each.fits]
    notes = [f"{each.device_name}: {gap.reason}." for each in plan.devices for gap in each.absent]
    if without:
        notes.append(
            f"The workload does not fit the memory of {', '.join(without)}. Times there assume "
            "that it does."
        )
    return tuple(Note(text=text) for text in notes)


def _times(plan: ServingPlan) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for each in plan.devices:
        if (floor := each.floor) is None:
            continue
        pace = floor.pace
        rows.append(
            (
                each.device_name,
                pace.time_to_first_token_s,
                pace.time_per_output_token_s,
                pace.request_s,
                pace.output_tokens_per_s,
                floor.decode.bound,
                each.least_cost_per_million_tokens,
            )
        )
    return Table(
        title="At best",
        columns=(
            Column(name="device", unit="name"),
            Column(name="first token", unit="s"),
            Column(name="each next", unit="s"),
            Column(name="request", unit="s"),
            Column(name="output", unit="tokens_per_s"),
            Column(name="decoding bound by"),
            Column(name="cost per million", unit="count"),
        ),
        rows=tuple(rows),
    )


def _memory(plan: ServingPlan) -> Table:
    held = plan.cost.memory
    rows: list[tuple[Cell, ...]] = []
    for each in plan.devices:
        floor = each.floor
        rows.append(
            (
                each.device_name,
                held.total_bytes,
                each.limit_bytes,
                fits(each.fits),
                None if floor is None else floor.largest_batch_size,
                None if floor is None else floor.compute_bound_batch_size,
            )
        )
    return Table(
        title="Memory and batch",
        columns=(
            Column(name="device", unit="name"),
            Column(name="weights and cache", unit="bytes"),
            Column(name="available", unit="bytes"),
            Column(name="fits"),
            Column(name="largest batch size", unit="count"),
            Column(name="compute-bound from", unit="count"),
        ),
        rows=tuple(rows),
        note=_crossover_note(plan),
    )


def _crossover_note(plan: ServingPlan) -> str | None:
    floors = [each.floor for each in plan.devices if each.floor is not None]
    never = [each.device for each in floors if each.compute_bound_batch_size is None]
    if len(never) == len(floors):
        return "The cache keeps decoding bound by memory at every batch size." if floors else None
    turns = "Compute-bound from: the smallest batch size whose decode step is bound by compute."
    if not never:
        return turns
    return (
        f"{turns} On {', '.join(never)} the cache keeps decoding bound by memory at every batch "
        "size."
    )


def _speculation(plan: ServingPlan) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for each in plan.devices:
        found = None if each.floor is None else each.floor.speculation
        if found is not None:
            rows.append(
                (
                    each.device_name,
                    found.tokens_per_round,
                    found.round_s,
                    found.speed_up,
                    found.best_draft_len,
                    found.best_speed_up,
                )
            )
    return Table(
        title="Speculation",
        columns=(
            Column(name="device", unit="name"),
            Column(name="tokens a round", unit="count"),
            Column(name="round", unit="s"),
            Column(name="speed-up", unit="ratio"),
            Column(name="best draft length", unit="count"),
            Column(name="its speed-up", unit="ratio"),
        ),
        rows=tuple(rows),
        note="Speed-ups are over plain decoding; below 1 speculation loses. A best draft length of "
        "0 means: do not speculate.",
    )


def _work(plan: ServingPlan) -> Table:
    cost = plan.cost
    return Table(
        title="Work of a step, for the whole batch",
        columns=(
            Column(name="step", unit="name"),
            Column(name="FLOPs", unit="flops"),
            Column(name="traffic", unit="bytes"),
            Column(name="FLOPs a byte", unit="count"),
        ),
        rows=(_cost_row("prefill", cost.prefill), _cost_row("decode, mean", cost.decode)),
        note=f"Weights {format_cell(cost.memory.weights_bytes, 'bytes')}, cache "
        f"{format_cell(cost.memory.cache_bytes_per_token, 'bytes')} a token.",
    )


def _cost_row(name: str, cost: Cost) -> tuple[Cell, ...]:
    return (name, cost.flops, cost.bytes, cost.flops_per_byte)
