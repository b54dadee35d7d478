"""Every layout of a training step on so many GPUs: which there are, which fit, and how fast each is."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import gcd

import msgspec

from peakward.prediction.floor import compute_type, peak_flops_per_s
from peakward.prediction.flops import step_flops
from peakward.prediction.parallel.candidate import Candidate
from peakward.prediction.parallel.price import price
from peakward.prediction.parallel.rank_costs import CostTable, RankCosts, expect_known
from peakward.prediction.parallel.rank_memory import memory
from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.site import Site
from peakward.records.case import ModelCase
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.layout import (
    EXPERT_DATA,
    SHARDING,
    DataStrategy,
    Layout,
    Schedule,
    expect_chunks,
    expect_experts,
    expect_layout,
    expect_shared,
    expect_splittable,
    expect_stages,
)
from peakward.records.layouts import (
    STRATEGIES,
    AskedLayout,
    Interconnect,
    LayoutForecast,
    LayoutPlan,
    Network,
    ReduceType,
)
from peakward.records.model_shape import ModelShape

MICRO_BATCH_SIZES = (1, 2, 4, 8, 16)
STAGES_PER_RANK = (1, 2, 4)
MOST_STAGES = 16
"""Ranks of a pipeline; more only where that is asked for."""
LEAST_TOKENS = 8192
"""Tokens of a sequence on each rank of context parallelism, as in Llama 3's run; fewer only where that is
asked for, as no published run bears them out."""
REDUCE_BYTES: dict[ReduceType, int] = {"bf16": 2, "fp32": 4}
GAINS = 0.97
"""A step as one CUDA graph is a layout of its own where it takes less than this share of the other's time."""
N_SHOWN = 100
"""Layouts that a plan holds. All that fit are timed."""


def interconnect(device: Device, n_gpus: int, network: Network) -> Interconnect:
    """The links between so many of these devices.

    Raises:
        PeakwardError: no link inside a node, more in a node than it joins, or no known network between nodes.
    """
    link = device.link
    if link is None:
        raise PeakwardError(
            f"expected a device with a link to its neighbours, got {device.name}: rates through the host "
            "depend on its board"
        )
    most = int(link.n_devices.value)
    per_node = most if network.gpus_per_node is None else network.gpus_per_node
    if per_node > most:
        raise PeakwardError(
            f"expected at most {most} GPUs in a node, which {link.name} joins, got {per_node}"
        )
    per_node = min(per_node, n_gpus)
    if n_gpus % per_node:
        raise PeakwardError(
            f"expected a number of GPUs that nodes of {per_node} make up, got {n_gpus}: give "
            "--gpus-per-node, or a multiple"
        )
    between = device.network
    name = None if between is None else between.name
    rate = None if between is None else between.bytes_per_s.value
    if network.bytes_per_s is not None:
        name, rate = "as given", network.bytes_per_s
    if n_gpus == per_node:
        name = rate = None
    elif rate is None:
        raise PeakwardError(
            f"expected a network between nodes, got none catalogued for {device.name}: give --network in "
            "GB/s a GPU"
        )
    return Interconnect(
        gpus_per_node=per_node,
        link_name=link.name,
        link_bytes_per_s=link.bytes_per_s.value,
        network_name=name,
        network_bytes_per_s=rate,
        oversubscription=network.oversubscription,
    )


def layout_plan(
    case: ModelCase,
    on: Site,
    n_gpus: int,
    *,
    asked: AskedLayout,
    network: Network,
    command: str,
    notes: tuple[str, ...] = (),
) -> LayoutPlan:
    """All layouts of the case on so many of the device that fit, the fastest first.

    Args:
        case: its batch is that of one GPU, so that all layouts compute as much.

    Raises:
        PeakwardError: a case or a device that cannot be priced, or a wish that no layout fulfils.
    """
    expect_known(case)
    if on.model is None:
        raise PeakwardError(on.why_no_model)
    links = interconnect(on.device, n_gpus, network)
    refused = _expect_possible(case, n_gpus, links, asked)
    table = CostTable(case, on.model)
    limit = on.limit_bytes(case.memory_limit_bytes)
    found: list[LayoutForecast] = []
    too_large: list[int] = []
    unknown: dict[str, None] = {}
    refusals: dict[str, None] = {}
    for given in candidates(case, n_gpus, links, asked, refusals):
        try:
            costs = _costs(table, given)
        except PeakwardError as refusal:
            unknown.setdefault(str(refusal))
            continue
        needed = memory(case, given, costs).total_bytes
        if needed > limit:
            too_large.append(needed)
            continue
        ways = [_forecast(case, on.device, each, costs, links) for each in _captures(given)]
        found += [each for each in ways if each is ways[0] or each.step_s < GAINS * ways[0].step_s]
    if not found and not too_large:
        for reason in (*unknown, *refusals):
            raise PeakwardError(reason)
        raise PeakwardError(
            "expected a batch that a layout's micro-batches divide, got none: change --batch-size, which is "
            "that of one GPU, or fix less of the layout"
        )
    found.sort(key=lambda each: (each.step_s, each.memory.total_bytes))
    return LayoutPlan(
        case=case,
        command=command,
        device=on.device.key,
        device_name=on.device.name,
        n_gpus=n_gpus,
        n_parameters=n_parameters(case.model),
        limit_bytes=limit,
        interconnect=links,
        reduce_type=asked.reduce_type,
        layouts=tuple(found[:N_SHOWN]),
        n_fitting=len(found),
        n_too_large=len(too_large),
        smallest_bytes=min(too_large) if not found else None,
        refused=(*refused, *unknown),
        notes=notes,
    )


def layout_forecast(
    case: ModelCase,
    on: Site,
    layout: Layout,
    *,
    network: Network | None = None,
    reduces_in_fp32: bool = False,
) -> LayoutForecast:
    """One layout of the case, whose batch is that of one GPU.

    Raises:
        PeakwardError: a case, a device or a layout that cannot be priced.
    """
    expect_known(case)
    if on.model is None:
        raise PeakwardError(on.why_no_model)
    if layout.data not in STRATEGIES or layout.wrap == "whole":
        raise PeakwardError(
            f"expected a strategy of {', '.join(STRATEGIES)} by blocks to predict, got {layout.name}"
        )
    expect_shared(layout, case.model, case.workload.batch_size)
    expect_chunks(layout.cp, case.workload.seq_len, case.model.positions)
    expect_experts(layout.ep, case.model)
    own = case.workload.batch_size * layout.n_ranks // layout.dp
    size = own // layout.n_micro_batches
    again = 1.0 if case.configuration.checkpointing == "every-block" else 0.0
    given = Candidate(layout, size, again, REDUCE_BYTES["fp32" if reduces_in_fp32 else "bf16"])
    costs = _costs(CostTable(case, on.model), given)
    links = interconnect(on.device, layout.n_ranks, network or Network())
    return _forecast(case, on.device, given, costs, links)


def _forecast(
    case: ModelCase, device: Device, given: Candidate, costs: RankCosts, links: Interconnect
) -> LayoutForecast:
    priced = price(case, given, costs, links)
    n_tokens = given.layout.n_ranks * case.workload.tokens_per_step
    return LayoutForecast(
        layout=given.layout,
        micro_batch_size=given.micro_batch_size,
        checkpointing="every-block" if given.recomputed else "none",
        step_s=priced.step_s,
        tokens_per_s=n_tokens / priced.step_s,
        mfu=_mfu(case, device, priced.step_s),
        compute_s=priced.compute_s,
        data_s=priced.data_s,
        tensor_s=priced.tensor_s,
        context_s=priced.context_s,
        expert_s=priced.expert_s,
        pipeline_s=priced.pipeline_s,
        update_s=priced.update_s,
        bound=priced.bound,
        traffic=priced.traffic,
        memory=memory(case, given, costs),
    )


def _costs(table: CostTable, given: Candidate) -> RankCosts:
    layout = given.layout
    return table.of(given.micro_batch_size, layout.tp, layout.data, layout.cp, layout.ep)


def _captures(given: Candidate) -> Iterator[Candidate]:
    """The candidate, and its step as one CUDA graph where the engine can capture it."""
    layout = given.layout
    yield given
    if layout.data in SHARDING and layout.n_ranks == layout.dp and layout.ep == 1:
        yield given._replace(layout=msgspec.structs.replace(layout, captured=True))


def _mfu(case: ModelCase, device: Device, step_s: float) -> float | None:
    peak = peak_flops_per_s(device, compute_type(case))
    return None if peak is None else (step_flops(case) or 0.0) / peak / step_s


def candidates(
    case: ModelCase,
    n_gpus: int,
    links: Interconnect,
    asked: AskedLayout,
    refusals: dict[str, None],
) -> Iterator[Candidate]:
    """The layouts of so many ranks that the engine takes, each with its micro-batches and checkpointing.

    Args:
        refusals: to which the reasons are added why it does not take others.
    """
    shape = case.model
    for tp in _tensor_sizes(shape, n_gpus, links, asked):
        for pp in _pipeline_sizes(shape, n_gpus // tp, asked):
            for cp in _context_sizes(case, n_gpus // (tp * pp), asked):
                own = case.workload.batch_size * tp * pp * cp
                mesh = Layout(dp=n_gpus // (tp * pp * cp), cp=cp, tp=tp, pp=pp)
                ways = product(
                    _expert_sizes(shape, mesh, asked), _strategies(mesh, asked), _sizes(cp, asked)
                )
                for ep, data, size in ways:
                    if own % size or (ep > 1 and data not in EXPERT_DATA):
                        continue
                    for schedule, per_rank in _schedules(shape, pp, own // size):
                        layout = msgspec.structs.replace(
                            mesh,
                            ep=ep,
                            data=data,
                            n_micro_batches=own // size,
                            schedule=schedule,
                            stages_per_rank=per_rank,
                        )
                        if _is_taken(layout, n_gpus, refusals):
                            for recomputed in _recomputations(asked):
                                yield Candidate(
                                    layout, size, recomputed, REDUCE_BYTES[asked.reduce_type]
                                )


def _strategies(mesh: Layout, asked: AskedLayout) -> tuple[DataStrategy, ...]:
    """Without ranks that share parameters all are one."""
    if mesh.n_sharing == 1:
        return ("ddp",)
    return STRATEGIES if asked.data is None else (asked.data,)


def _sizes(cp: int, asked: AskedLayout) -> tuple[int, ...]:
    """Sequences of a micro-batch: of those that are split one at a time, as fewer whole ones take as little
    memory and send nothing."""
    if asked.micro_batch_size is not None:
        return (asked.micro_batch_size,)
    return MICRO_BATCH_SIZES if cp == 1 else (1,)


def _recomputations(asked: AskedLayout) -> tuple[float, ...]:
    return {"none": (0.0,), "every-block": (1.0,)}.get(asked.checkpointing or "", (0.0, 1.0))


def _is_taken(layout: Layout, n_gpus: int, refusals: dict[str, None]) -> bool:
    """Whether the engine takes the layout."""
    try:
        expect_layout(layout, n_gpus)
    except PeakwardError as refusal:
        refusals.setdefault(str(refusal))
        return False
    return True


def _schedules(shape: ModelShape, pp: int, n_micro: int) -> Iterator[tuple[Schedule, int]]:
    """1F1B, and the interleaved one with as many stages a rank as there are blocks for."""
    yield "1f1b", 1
    if pp == 1:
        return
    for per_rank in STAGES_PER_RANK[1:]:
        if pp * per_rank <= shape.n_layers and n_micro % max(1, n_micro // pp) == 0:
            yield "interleaved", per_rank


def _tensor_sizes(
    shape: ModelShape, n_gpus: int, links: Interconnect, asked: AskedLayout
) -> Sequence[int]:
    if asked.tp is not None:
        return (asked.tp,)
    sizes = (2**at for at in range(links.gpus_per_node.bit_length()))
    return [
        each
        for each in sizes
        if links.gpus_per_node % each == 0 and n_gpus % each == 0 and not unsplittable(shape, each)
    ]


def _pipeline_sizes(shape: ModelShape, n_ranks: int, asked: AskedLayout) -> Sequence[int]:
    if asked.pp is not None:
        return (asked.pp,)
    most = min(n_ranks, shape.n_layers, MOST_STAGES)
    return [each for each in range(1, most + 1) if n_ranks % each == 0]


def _context_sizes(case: ModelCase, n_ranks: int, asked: AskedLayout) -> Sequence[int]:
    if asked.cp is not None:
        return (asked.cp,)
    most = max(1, case.workload.seq_len // LEAST_TOKENS)
    return [each for each in _divisors(n_ranks) if each <= most and _is_in_chunks(case, each)]


def _expert_sizes(shape: ModelShape, mesh: Layout, asked: AskedLayout) -> Sequence[int]:
    if asked.ep is not None:
        return (asked.ep,) if mesh.n_sharing % asked.ep == 0 else ()
    return _divisors(gcd(mesh.n_sharing, shape.n_experts))


def _divisors(n: int) -> list[int]:
    return [each for each in range(1, n + 1) if n % each == 0]


def _is_in_chunks(case: ModelCase, cp: int) -> bool:
    try:
        expect_chunks(cp, case.workload.seq_len, case.model.positions)
    except PeakwardError:
        return False
    return True


def unsplittable(shape: ModelShape, n_ranks: int) -> str | None:
    """Why so many ranks of tensor parallelism cannot share the model."""
    if n_ranks > 1:
        try:
            expect_splittable(shape, n_ranks)
        except PeakwardError as refusal:
            return str(refusal)
    return None


def _expect_possible(
    case: ModelCase, n_gpus: int, links: Interconnect, asked: AskedLayout
) -> tuple[str, ...]:
    """The reasons of what is left out.

    Raises:
        PeakwardError: a wish that cannot be.
    """
    shape, wish = case.model, Layout(cp=asked.cp or 1, tp=asked.tp or 1, pp=asked.pp or 1)
    tp, pp = wish.tp, wish.pp
    if wish.n_ranks > n_gpus:
        raise PeakwardError(
            f"expected at most {n_gpus} ranks, one a GPU, got {_axes(wish)}: take more GPUs, or smaller axes"
        )
    if n_gpus % wish.n_ranks:
        raise PeakwardError(
            f"expected axes that divide {n_gpus} GPUs, got {_axes(wish)}: change one of them"
        )
    expect_chunks(wish.cp, case.workload.seq_len, shape.positions)
    _expect_experts(case, n_gpus // (tp * pp), asked)
    if tp > links.gpus_per_node:
        raise PeakwardError(
            f"expected tensor parallelism inside of a node of {links.gpus_per_node} GPUs, got tp {tp}"
        )
    if (reason := unsplittable(shape, tp)) is not None:
        raise PeakwardError(reason)
    expect_stages(Layout(pp=pp), shape.n_layers)
    if asked.tp is not None:
        return ()
    left_out = (unsplittable(shape, 2**at) for at in range(links.gpus_per_node.bit_length()))
    return tuple(each for each in left_out if each is not None)


def _expect_experts(case: ModelCase, n_sharing: int, asked: AskedLayout) -> None:
    """
    Raises:
        PeakwardError: experts that cannot be split over so many ranks, or by that strategy.
    """
    ep = asked.ep or 1
    expect_experts(ep, case.model)
    if ep > 1 and (n_sharing % ep or asked.data not in (None, *EXPERT_DATA)):
        raise PeakwardError(
            f"expected {', '.join(EXPERT_DATA)} over a multiple of {ep} ranks to split experts, got "
            f"{asked.data or 'data'} over {n_sharing}: change either"
        )


def _axes(wish: Layout) -> str:
    axes = (("cp", wish.cp), ("tp", wish.tp), ("pp", wish.pp))
    return " × ".join(f"{name} {size}" for name, size in axes if size > 1)
