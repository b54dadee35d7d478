"""A block's mixture of experts (`lab/models/experts.py`): router, sorting, grouped products, gating.

Shapes follow from the numbers of tokens and of choices alone, but for the rows that each expert
gets: routing is taken to be balanced (`grouped_linear`). Where autograd puts gradients into a tensor
of zeros (`index_add`, `scatter`), it does so in place; under a recorder of operators, which these
functions agree with, the result is a new tensor.
"""

from typing import NamedTuple

from peakward.prediction.operators import activation, grouped_linear, linear
from peakward.prediction.operators.grouped_linear import GroupedLinear
from peakward.prediction.operators.layers import BLOCK
from peakward.prediction.operators.linear import Linear
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, HALF, INT, Tape, of_type, tensor
from peakward.records.op_graph import Operand

_MIXTURE = f"{BLOCK}.ff"


class Layers(NamedTuple):
    """`up` stands for what the decoder packs in it."""

    router: Linear
    up: GroupedLinear
    down: GroupedLinear


def layers(plan: Plan) -> Layers:
    """In the order in which they run."""
    shape, types = plan.shape, (plan.stored, plan.compute)
    width = 2 * shape.d_ff if shape.gated else shape.d_ff
    how = (*types, plan.groups_in_one_kernel, plan.device == "cuda")
    return Layers(
        router=Linear(f"{_MIXTURE}.router", shape.d_model, shape.n_experts, False, *types),
        up=GroupedLinear(f"{_MIXTURE}.up", shape.n_experts, shape.d_model, width, *how),
        down=GroupedLinear(f"{_MIXTURE}.down", shape.n_experts, shape.d_ff, shape.d_model, *how),
    )


def n_visits(plan: Plan) -> int:
    """Pairs of a token and an expert that it chose."""
    return plan.tokens * plan.shape.n_active_experts


def forward(tape: Tape, plan: Plan) -> Operand:
    """The normed residual stream → what is added to it."""
    until_saved(tape, plan)
    share = tensor(plan.compute, *_chosen(plan), 1)
    with tape.module(_MIXTURE):
        weighed = tape.pointwise("mul", share, _by_token(plan))
        summed = tensor(result(plan).dtype, plan.tokens, plan.shape.d_model)
        tape.call("sum", (weighed,), (summed,))
    return result(plan)


def until_saved(tape: Tape, plan: Plan) -> None:
    """As far as torch recomputes it: until every result is there, by token, with its share."""
    layer = layers(plan)
    linear.forward(tape, layer.router, _tokens(plan))
    with tape.module(_MIXTURE):
        share = _route(tape, plan)
        visiting = _sort_by_expert(tape, plan)
    grouped_linear.forward(tape, layer.up, visiting)
    with tape.module(_MIXTURE):
        activated = activation.forward(tape, plan, _activations(plan))
    visited = grouped_linear.forward(tape, layer.down, activated)
    with tape.module(_MIXTURE):
        _sort(tape, plan)
        _selected(tape, plan, visited)
        tape.cast(share, plan.compute)


def result(plan: Plan) -> Operand:
    """What is added: (batch, seq, d_model) in the compute type; under CUDA's autocast, which sums in
    fp32, in that."""
    return of_type(plan.hidden, FLOAT if sums_in_fp32(plan) else plan.compute)


def sums_in_fp32(plan: Plan) -> bool:
    """Whether a sum of results in the compute type is in fp32."""
    return plan.autocast and plan.device == "cuda"


def softmax_widens(plan: Plan) -> bool:
    """CUDA's has fp32 results of fp16 itself."""
    return plan.compute == HALF and plan.device == "cuda"


def backward(tape: Tape, plan: Plan, gradient: Operand) -> None:
    """Gradient of the result → of the normed residual stream; also of all parameters."""
    layer = layers(plan)
    with tape.module(_MIXTURE):
        _gate_backward(tape, plan, gradient)
        of_visited = _scattered(tape, plan, plan.compute)
    activated = grouped_linear.backward(tape, layer.down, of_visited, plan.compute)
    with tape.module(_MIXTURE):
        widened = activation.backward(tape, plan, activated)
    grouped_linear.backward(tape, layer.up, widened, plan.stored)
    with tape.module(_MIXTURE):
        visits = of_type(_scattered(tape, plan, plan.stored), plan.stored)
        if plan.shape.n_active_experts > 1:
            tape.reduced("sum", _by_token(plan, visits.dtype), plan.tokens, 1, plan.shape.d_model)
        logits = _route_backward(tape, plan)
    tokens = linear.backward(tape, layer.router, logits, plan.stored)
    with tape.module(layer.router.module):
        tape.pointwise("add", tokens, tokens)


def _route(tape: Tape, plan: Plan) -> Operand:
    """From the logits to the shares of each token's experts, in fp32."""
    logits = tensor(plan.compute, plan.tokens, plan.shape.n_experts)
    if not softmax_widens(plan):
        logits = tape.cast(logits, FLOAT)
    likely = tape.pointwise("_softmax", logits, dtype=FLOAT)
    share, chosen = tensor(FLOAT, *_chosen(plan)), tensor(INT, *_chosen(plan))
    tape.call("topk", (likely,), (share, chosen))
    return tape.pointwise("div", share, tape.reduced("sum", share, plan.tokens, 1))


def _sort_by_expert(tape: Tape, plan: Plan) -> Operand:
    """The tokens, once for each visit, in the order of the experts."""
    visits = _sort(tape, plan)
    experts = tape.made("arange", INT, plan.shape.n_experts)
    tape.call("searchsorted", (visits, experts), (layers(plan).up.ends,))
    repeated = _by_token(plan, plan.stored)
    tape.copied(repeated, stored_bytes=_tokens(plan).n_bytes)
    return _selected(tape, plan, _visits(plan, plan.stored))


def _sort(tape: Tape, plan: Plan) -> Operand:
    visits = tensor(INT, n_visits(plan))
    tape.call("sort", (visits,), (visits, visits))
    return visits


def _selected(tape: Tape, plan: Plan, visits: Operand) -> Operand:
    """The rows in another order."""
    tape.call("index_select", (visits, tensor(INT, n_visits(plan))), (visits,))
    return visits


def _scattered(tape: Tape, plan: Plan, dtype: str) -> Operand:
    """The gradient of rows that were put in another order."""
    zeros, order = _visits(plan, dtype), tensor(INT, n_visits(plan))
    tape.call("new_zeros", (zeros,), (zeros,), bytes_read=0)
    tape.call("index_add", (zeros, order, zeros), (zeros,))
    return zeros


def _gate_backward(tape: Tape, plan: Plan, gradient: Operand) -> None:
    """From what was summed over a token's experts to their results and to the shares in fp32."""
    whole, stored_bytes = _by_token(plan, gradient.dtype), gradient.n_bytes  # It is expanded.
    if gradient.dtype != plan.compute:
        narrow = _by_token(plan)
        tape.call("_to_copy", (whole,), (narrow,), bytes_read=stored_bytes)
        whole, stored_bytes = narrow, narrow.n_bytes
    for other in (tensor(plan.compute, *_chosen(plan), 1), _by_token(plan)):
        tape.call("mul", (whole, other), (whole,), bytes_read=stored_bytes + other.n_bytes)
    tape.reduced("sum", whole, *_chosen(plan), 1)
    tape.cast(tensor(plan.compute, *_chosen(plan)), FLOAT)


def _route_backward(tape: Tape, plan: Plan) -> Operand:
    """Gradient of the shares in fp32 → of the logits in the compute type."""
    share, total = tensor(FLOAT, *_chosen(plan)), tensor(FLOAT, plan.tokens, 1)
    for _ in ("the gradient of the share", "the share", "the share once more"):
        tape.pointwise("div", share, total)
    tape.pointwise("mul", tape.pointwise("neg", share), share)
    if plan.shape.n_active_experts > 1:
        tape.reduced("sum", share, plan.tokens, 1)
    tape.call("add", (share, share), (share,), bytes_read=share.n_bytes + total.n_bytes)
    likely = tensor(FLOAT, plan.tokens, plan.shape.n_experts)
    tape.call("new_zeros", (share,), (likely,), bytes_read=0)
    tape.call("scatter", (likely, tensor(INT, *_chosen(plan)), share), (likely,))
    if softmax_widens(plan):
        return tape.pointwise("_softmax_backward_data", likely, likely, dtype=HALF)
    return tape.cast(tape.pointwise("_softmax_backward_data", likely, likely), plan.compute)


def _tokens(plan: Plan) -> Operand:
    return tensor(plan.stored, plan.tokens, plan.shape.d_model)


def _chosen(plan: Plan) -> tuple[int, int]:
    return plan.tokens, plan.shape.n_active_experts


def _visits(plan: Plan, dtype: str) -> Operand:
    return tensor(dtype, n_visits(plan), plan.shape.d_model)


def _by_token(plan: Plan, dtype: str | None = None) -> Operand:
    """In the compute type unless another is named."""
    return tensor(dtype or plan.compute, *_chosen(plan), plan.shape.d_model)


def _activations(plan: Plan) -> Operand:
    return tensor(plan.compute, n_visits(plan), plan.shape.d_ff)
