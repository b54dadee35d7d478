"""The costs of a micro-batch on one rank: a block, the embedding, the readout with its
loss.

A rank of tensor parallelism has its share of the heads and of the feed-forward width; norms are whole
on every rank, and so are the logits and their loss (`lab/parallel/tensor.py`). So a block of such a
rank is the block of a narrower model, whose time and memory `prediction` knows. Strategies of
`fully_shard` compute in 16 bits where a single GPU has autocast (`MixedPrecisionPolicy`): no casts, and
a residual stream of half the size.
"""

from itertools import accumulate
from typing import Literal, NamedTuple

import msgspec

from peakward.prediction.memory.peak import lifetimes_of
from peakward.prediction.memory.timeline import Lifetimes
from peakward.prediction.parameters import embedding_parameters, n_parameters
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.step import step_time
from peakward.records.case import ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.layout import SHARDING, DataStrategy
from peakward.records.model_shape import ModelShape
from peakward.records.prediction import StepTime

Part = Literal["blocks", "embedding", "readout"]
ITEM_BYTES = {"bf16-mixed": 4, "bf16": 2}
"""Bytes of a parameter, its gradient and each moment, by precision: autocast is over fp32 parameters, and
`fully_shard` keeps its shards in fp32 too."""
COMPUTE_BYTES = 2
"""Bytes of an element that is gathered or that goes from rank to rank, in 16 bits."""
PASSING = frozenset(("activations", "logits", "weight_casts", "temporaries", "inputs", "workspace"))
"""Categories that a micro-batch has, and that a rank has not between steps."""


MANY_BYTES = 10**9
"""So many that a launch takes no part of their time."""


class Seconds(NamedTuple):
    """The two passes of one micro-batch."""

    forward_s: float
    backward_s: float


class RankCosts(NamedTuple):
    """Figures of one rank and one micro-batch. Parameters are counted before the data axis splits them."""

    block: Seconds
    captured_block: Seconds
    """The same within a CUDA graph, which takes nothing of the host."""
    embedding: Seconds
    readout: Seconds
    block_parameters: int
    embedding_parameters: int
    readout_parameters: int
    """The output layer, and the last norm."""
    tied_parameters: int
    """The output layer, where it is the table of tokens: a rank with both has it once."""
    kept_bytes: int
    """The activations that a block keeps for its backward pass."""
    input_bytes: int
    """A block's input, which is what a recomputed block keeps, and what goes on to the next stage."""
    logits_bytes: int
    casts_bytes: int
    """A block's weights in 16 bits, which autocast keeps through the pass."""
    other_bytes: int
    """Inputs, workspaces and temporaries of a model of one block at its peak, without logits."""
    update_s: float
    """Updating one parameter, where the device limits the update."""
    moved_s: float
    """Reading or writing a byte, of many."""
    kv_bytes: int = 0
    """The keys and values of a block that ranks of context parallelism gather, of whole sequences."""
    expert_parameters: int = 0
    """Those of `block_parameters` that ranks of expert parallelism have split."""
    routed_bytes: int = 0
    """The tokens that a rank sends to the experts of a block, each once for every expert of its own."""


def compute_precision(precision: str, data: DataStrategy) -> str:
    """The precision that a strategy's passes have where the case's is such."""
    return "bf16" if data in SHARDING else precision


class CostTable:
    """The costs of a case's ranks on a device, each computed once."""

    def __init__(self, case: ModelCase, on: DeviceModel) -> None:
        self._case, self._on = case, on
        self._update_s = _update_s(_narrow(case.model, 1, 1), case, on)
        self._held: dict[tuple[int, int, str], _Held] = {}
        self._known: dict[tuple[int, int, int, str], RankCosts] = {}
        self._fewer: dict[int, CostTable] = {}
        self._attending: dict[tuple[tuple[int, int, str], int], Seconds] = {}

    def of(
        self, micro_batch_size: int, tp: int, data: DataStrategy, cp: int = 1, ep: int = 1
    ) -> RankCosts:
        """The costs of a micro-batch; passes have the precision of the strategy.

        Raises:
            PeakwardError: ranks that split sequences with attention that keeps its scores.
        """
        if ep > 1:
            return self._with_fewer_experts(micro_batch_size, tp, data, cp, ep)
        precision = compute_precision(self._case.configuration.precision, data)
        key = (micro_batch_size, tp, cp, precision)
        if key not in self._known:
            case = _of_part_of_a_sequence(self._case, cp)
            if (tp, cp, precision) not in self._held:
                self._held[tp, cp, precision] = _held(case, tp, precision)
            held, own = self._held[tp, cp, precision], (micro_batch_size, tp, precision)
            costs = _rank_costs(case, *own, self._on, held=held, update_s=self._update_s)
            self._known[key] = costs if cp == 1 else self._over_whole(costs, own, cp)
        return self._known[key]

    def _over_whole(self, part: RankCosts, own: tuple[int, int, str], cp: int) -> RankCosts:
        """The costs of a part of each sequence with attention over the whole: a rank has its share of the
        scores, of which causal ones are equally many on each (`Layout.cp`)."""
        micro_batch_size, tp, _ = own
        short, whole = self._attention(own, cp), self._attention(own, 1)
        if not whole.forward_s:
            raise PeakwardError(
                "expected attention in one kernel, which keeps no scores, for context parallelism, got "
                f"{self._case.configuration.attention}: take sdpa"
            )
        own_s = [each / cp for each in whole]
        block, captured_block = (
            Seconds(*(b - less + more for b, less, more in zip(each, short, own_s, strict=True)))
            for each in (part.block, part.captured_block)
        )
        shape, n_tokens = self._case.model, micro_batch_size * self._case.workload.seq_len
        kv_bytes = 2 * COMPUTE_BYTES * n_tokens * shape.n_kv_heads // tp * shape.head_dim
        # Gathered keys and values, and their gradients before they are summed.
        other_bytes = part.other_bytes + 2 * kv_bytes
        return part._replace(
            block=block, captured_block=captured_block, kv_bytes=kv_bytes, other_bytes=other_bytes
        )

    def _with_fewer_experts(
        self, micro_batch_size: int, tp: int, data: DataStrategy, cp: int, ep: int
    ) -> RankCosts:
        """A rank has its share of the experts, and the tokens that all ranks send to them: dealt evenly they
        are as many as its own. One expert alone is priced as two with half of its tokens each."""
        shape = self._case.model
        n_experts = shape.n_experts // ep
        if ep not in self._fewer:
            less = msgspec.structs.replace(shape, n_experts=max(2, n_experts))
            self._fewer[ep] = CostTable(msgspec.structs.replace(self._case, model=less), self._on)
        found = self._fewer[ep].of(micro_batch_size, tp, data, cp)
        experts = n_experts * shape.expert_parameters
        tokens = micro_batch_size * self._case.workload.seq_len // cp
        sent_bytes = COMPUTE_BYTES * tokens * shape.n_active_experts * shape.d_model
        return found._replace(
            block_parameters=_block_parameters(shape)
            - (shape.n_experts - n_experts) * shape.expert_parameters,
            expert_parameters=experts,
            routed_bytes=sent_bytes,
            update_s=self._update_s,
            other_bytes=found.other_bytes + 2 * sent_bytes,
        )

    def _attention(self, own: tuple[int, int, str], cp: int) -> Seconds:
        """A block's kernels of attention within the part of a sequence that each of so many ranks has."""
        if (own, cp) not in self._attending:
            micro_batch_size, tp, precision = own
            case = _of_part_of_a_sequence(self._case, cp)
            shape = _narrow(case.model, tp, 1)
            time = step_time(_case(shape, micro_batch_size, case, precision), self._on)
            self._attending[own, cp] = _of_attention(time)
        return self._attending[own, cp]


class Linear(NamedTuple):
    """Bytes that grow with the sequences of a micro-batch."""

    fixed: int
    growth: int

    def of(self, micro_batch_size: int) -> int:
        """Bytes of so many sequences."""
        return max(0, self.fixed + micro_batch_size * self.growth)


class _Held(NamedTuple):
    """Bytes that `prediction.memory` has of a block and of one sequence."""

    parameters: int
    kept: int
    casts: int
    logits: Linear
    other: Linear


def _held(case: ModelCase, tp: int, precision: str) -> _Held:
    """Bytes of a block, from models of one and of two blocks, and from batches of one and of two."""
    one, two = (_narrow(case.model, tp, n_layers) for n_layers in (1, 2))
    less, more, larger = (
        _Moments(lifetimes_of(_case(shape, size, case, precision), None))
        for shape, size in ((one, 1), (two, 1), (one, 2))
    )
    kept, casts = (
        more.between(category) - less.between(category)
        for category in ("activations", "weight_casts")
    )
    part, whole = (
        _linear(*(each.most(categories) for each in (less, larger)))
        for categories in (PASSING - {"logits"}, PASSING)
    )
    return _Held(
        parameters=n_parameters(two) - n_parameters(one),
        kept=kept,
        casts=casts,
        logits=Linear(whole.fixed - part.fixed, whole.growth - part.growth),
        other=Linear(part.fixed - casts, part.growth - kept),
    )


def _linear(one: int, two: int) -> Linear:
    """Through the figures of one sequence and of two."""
    return Linear(2 * one - two, two - one)


class _Moments:
    """The last step of a timeline."""

    def __init__(self, held: Lifetimes) -> None:
        self._held, phases = held, held.phases
        end = len(phases)
        self._back = next(at for at in range(end - 1, 0, -1) if phases[at - 1] == "forward")
        self._begin = next(at for at in range(self._back - 1, 0, -1) if phases[at - 1] != "forward")

    def between(self, category: str) -> int:
        """Bytes of a category between the forward and the backward pass."""
        return sum(
            each.n_bytes
            for each in self._held.tensors()
            if each.category == category and each.made < self._back <= each.last
        )

    def most(self, categories: frozenset[str]) -> int:
        """The most bytes that these categories have together at one moment of the passes."""
        change = [0] * (len(self._held.phases) + 1)
        for each in self._held.tensors():
            if each.category in categories:
                change[each.made] += each.n_bytes
                change[each.last + 1] -= each.n_bytes
        return max(list(accumulate(change))[self._begin : -1])


def _rank_costs(
    case: ModelCase,
    micro_batch_size: int,
    tp: int,
    precision: str,
    on: DeviceModel,
    *,
    held: _Held,
    update_s: float,
) -> RankCosts:
    """
    Args:
        case: a training step; its batch, its accumulation and its checkpointing are left aside.
        tp: the ranks of tensor parallelism.
        held: of one sequence.
    """
    shape = case.model
    one, two = (_narrow(shape, tp, n_layers) for n_layers in (1, 2))
    time, longer = (
        step_time(_case(each, micro_batch_size, case, precision), on) for each in (one, two)
    )
    device, host = _block_s(longer, time)
    tokens = micro_batch_size * case.workload.seq_len
    item = 4 if precision == "bf16-mixed" else COMPUTE_BYTES
    return RankCosts(
        block=Seconds(*map(max, device, host)),
        captured_block=device,
        embedding=_of_part(time, "embedding", 1),
        readout=_of_part(time, "readout", tp),
        block_parameters=held.parameters,
        embedding_parameters=embedding_parameters(shape) // tp,
        tied_parameters=shape.vocab_size * shape.d_model // tp if shape.tied_head else 0,
        readout_parameters=shape.vocab_size * shape.d_model // tp + shape.d_model,
        kept_bytes=micro_batch_size * held.kept,
        input_bytes=tokens * shape.d_model * item,
        logits_bytes=held.logits.of(micro_batch_size),
        casts_bytes=held.casts,
        other_bytes=held.other.of(micro_batch_size),
        update_s=update_s,
        moved_s=on.traffic.time_s(MANY_BYTES) / MANY_BYTES,
    )


def _of_part_of_a_sequence(case: ModelCase, cp: int) -> ModelCase:
    """The case of a rank's tokens alone, whose attention is then too short."""
    if cp == 1:
        return case
    work = msgspec.structs.replace(case.workload, seq_len=case.workload.seq_len // cp)
    return msgspec.structs.replace(case, workload=work)


def _of_attention(time: StepTime) -> Seconds:
    found = {"forward": 0.0, "backward": 0.0}
    for each in time.operators:
        if each.category == "attention" and each.phase in found:
            found[each.phase] += each.device_s
    return Seconds(found["forward"], found["backward"])


def _block_parameters(shape: ModelShape) -> int:
    one, two = (_narrow(shape, 1, n_layers) for n_layers in (1, 2))
    return n_parameters(two) - n_parameters(one)


def _update_s(shape: ModelShape, case: ModelCase, on: DeviceModel) -> float:
    own = case.configuration.precision
    found = step_time(_case(shape, 1, case, own, "train_step"), on)
    update_s = sum(each.device_s for each in found.phases if each.phase == "optimizer")
    return update_s / n_parameters(shape)


def _narrow(shape: ModelShape, tp: int, n_layers: int) -> ModelShape:
    """A model of so many blocks with one rank's share of heads and width. Its vocabulary stays whole."""
    return msgspec.structs.replace(
        shape,
        name=f"{shape.name} / {tp}",
        n_layers=n_layers,
        n_heads=shape.n_heads // tp,
        n_kv_heads=shape.n_kv_heads // tp,
        d_ff=shape.d_ff // tp,
    )


def _case(
    shape: ModelShape,
    size: int,
    case: ModelCase,
    precision: str,
    pass_: Literal["forward_backward", "train_step"] = "forward_backward",
) -> ModelCase:
    settings = msgspec.structs.replace(
        case.configuration, precision=precision, checkpointing="none"
    )
    work = Workload(batch_size=size, seq_len=case.workload.seq_len, pass_=pass_)
    return ModelCase(model=shape, workload=work, configuration=settings, device="cuda")


def _block_s(longer: StepTime, shorter: StepTime) -> tuple[Seconds, Seconds]:
    """One block more: what the device needs for it, and what the host does."""
    pairs = [
        [next(one for one in each.phases if one.phase == phase) for each in (longer, shorter)]
        for phase in ("forward", "backward")
    ]
    device = Seconds(*(more.device_s - less.device_s for more, less in pairs))
    return device, Seconds(*(more.host_s - less.host_s for more, less in pairs))


def _of_part(time: StepTime, part: Part, tp: int) -> Seconds:
    """The device's time of the embedding, or of all that is neither it nor a block. Of the output layer a
    rank has its share; the loss is of all logits."""
    found = {"forward": 0.0, "backward": 0.0}
    for each in time.operators:
        module = each.module or "readout"
        if module.split(".")[0] == part and each.phase in found:
            found[each.phase] += each.device_s / (tp if module == "readout.head" else 1)
    return Seconds(found["forward"], found["backward"])


def expect_known(case: ModelCase) -> None:
    """
    Raises:
        PeakwardError: a case whose ranks this room does not know.
    """
    workload, settings = case.workload, case.configuration
    if workload.pass_ != "train_step":
        raise PeakwardError(
            f"expected a train_step to plan layouts of many GPUs, got {workload.pass_}: leave --pass out"
        )
    if settings.precision not in ITEM_BYTES:
        raise PeakwardError(
            f"expected precision {' or '.join(ITEM_BYTES)} for layouts of many GPUs, got "
            f"{settings.precision}"
        )
    if workload.accumulate > 1 or workload.varying_seq_lens or settings.cuda_graphs:
        what = "accumulation" if workload.accumulate > 1 else "lengths that vary, or a CUDA graph"
        raise PeakwardError(
            f"expected a plain step to plan layouts of many GPUs, got {what}: micro-batches are chosen "
            "by the plan"
        )
