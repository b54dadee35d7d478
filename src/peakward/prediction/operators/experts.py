"""A block's mixture of experts (`lab/models/layers.py`): router, sorting, grouped products, gating.

Shapes follow from the numbers of tokens and of choices alone, but for the rows that each expert
gets: routing is taken to be balanced (`grouped_linear`). Where autograd puts gradients into a tensor
of zeros (`index_add`, `scatter`), it does so in place; under a recorder of operators, which these
functions agree with, the result is a new tensor.
"""

from typing import NamedTuple

from peakward.prediction.memory import attention
from peakward.prediction.operators import feed_forward, grouped_linear, linear
from peakward.prediction.operators.feed_forward import SavedActivation
from peakward.prediction.operators.grouped_linear import GroupedLinear, SavedGroups
from peakward.prediction.operators.linear import BLOCK, Linear, SavedLinear
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, HALF, INT, of_type, tensor
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand

_MIXTURE = f"{BLOCK}.ff"


class SavedRoute(NamedTuple):
    """Tensors that the router keeps: those of its product, all likelihoods, the choice, and the division's
    operands."""

    router: SavedLinear
    likely: Value
    chosen: Value
    share: Value
    total: Value


class SavedExperts(NamedTuple):
    """The tensors that autograd keeps of all parts: both orders of the visits, the results and their
    weights."""

    route: SavedRoute
    order: Value
    up: SavedGroups
    activation: SavedActivation
    down: SavedGroups
    back: Value
    by_token: Value
    weight: Value


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


def forward(on: Writer, plan: Plan, x: Value) -> tuple[SavedExperts, Value]:
    """The normed residual stream → what is added to it."""
    saved, held = _until_saved(on, plan, x)
    with on.module(_MIXTURE):
        share = saved.weight.viewed(tensor(plan.compute, *_chosen(plan), 1))
        weighed = on.pointwise("mul", share, saved.by_token)
        summed = tensor(result(plan).dtype, plan.tokens, plan.shape.d_model)
        (y,) = on.call("sum", (weighed,), (summed,))
    on.use(*held)
    return saved, y.viewed(result(plan))


def until_saved(on: Writer, plan: Plan, x: Value) -> SavedExperts:
    """As far as torch recomputes it: until every result is there, by token, with its share."""
    saved, held = _until_saved(on, plan, x)
    on.use(*held)
    return saved


def result(plan: Plan) -> Operand:
    """The term that is added: (batch, seq, d_model) in the compute type, or in fp32 under CUDA's autocast,
    which sums in fp32."""
    return of_type(plan.hidden, FLOAT if sums_in_fp32(plan) else plan.compute)


def sums_in_fp32(plan: Plan) -> bool:
    """Whether a sum of results in the compute type is in fp32."""
    return plan.autocast and plan.device == "cuda"


def softmax_widens(plan: Plan) -> bool:
    """CUDA's has fp32 results of fp16 itself."""
    return plan.compute == HALF and plan.device == "cuda"


def backward(on: Writer, plan: Plan, saved: SavedExperts, gradient: Value) -> Value:
    """Gradient of the result → of the normed residual stream; also of all parameters."""
    layer = layers(plan)
    with on.module(_MIXTURE):
        share, by_token = _gate_backward(on, plan, saved, gradient)
        visited = _scattered(on, plan, by_token, saved.back, plan.compute)
    product = grouped_linear.backward(on, saved.down, visited, plan.compute)
    with on.module(_MIXTURE):
        widened = feed_forward.activation_backward(on, plan, saved.activation, product)
    visiting = grouped_linear.backward(on, saved.up, widened, plan.stored)
    with on.module(_MIXTURE):
        x = _scattered(on, plan, visiting, saved.order, plan.stored)
        if plan.shape.n_active_experts > 1:
            visits = x.viewed(_by_token(plan, plan.stored))
            x = on.reduced("sum", visits, plan.tokens, 1, plan.shape.d_model)
        logits = _route_backward(on, plan, saved.route, share)
    routed = linear.backward(on, saved.route.router, logits, plan.stored)
    with on.module(layer.router.module):
        on.timed("add", routed, routed, output=routed.operand)
    on.use(x, routed)  # Added to in place.
    return x.viewed(plan.hidden)


def _until_saved(on: Writer, plan: Plan, x: Value) -> tuple[SavedExperts, tuple[Value, ...]]:
    """The saved tensors, and those that locals hold on to."""
    layer = layers(plan)
    router, logits = linear.forward(on, layer.router, x.viewed(_tokens(plan)))
    with on.module(_MIXTURE):
        route, share = _route(on, plan, router, logits)
        expert, order = _sort(on, plan, route.chosen)
        numbers, ends = _ends(on, plan, expert)
        (repeated,) = on.call(
            "clone",
            (x.viewed(_by_token(plan, plan.stored)),),
            (_by_token(plan, plan.stored),),
            bytes_read=_tokens(plan).n_bytes,
        )
        visiting = _selected(on, plan, repeated, order)
    up, widened = grouped_linear.forward(on, layer.up, visiting, ends)
    with on.module(_MIXTURE):
        activated, product = feed_forward.activation_forward(on, plan, widened)
    down, visited = grouped_linear.forward(on, layer.down, product, ends)
    on.use(widened)
    with on.module(_MIXTURE):
        _, back = _sort(on, plan, order)
        by_token = _selected(on, plan, visited, back)
        weight = on.cast(share, plan.compute)
    held = (x, share, route.chosen, expert, order, numbers, ends, visiting, visited, by_token)
    by_token = by_token.viewed(_by_token(plan))
    saved = SavedExperts(route, order, up, activated, down, back, by_token, weight)
    return saved, held


def _route(on: Writer, plan: Plan, router: SavedLinear, logits: Value) -> tuple[SavedRoute, Value]:
    """The saved, and each token's shares of its experts in fp32."""
    given = logits if softmax_widens(plan) else on.cast(logits, FLOAT)
    likely = on.pointwise("_softmax", given, dtype=FLOAT)
    both = (tensor(FLOAT, *_chosen(plan)), tensor(INT, *_chosen(plan)))
    share, chosen = on.call("topk", (likely,), both)
    total = on.reduced("sum", share, plan.tokens, 1)
    divided = on.pointwise("div", share, total)
    on.use(logits, likely)
    return SavedRoute(router, likely, chosen, share, total), divided


def _ends(on: Writer, plan: Plan, expert: Value) -> tuple[Value, Value]:
    """The experts' numbers, and where each one's visits end."""
    (numbers,) = on.call("arange", (), (tensor(INT, plan.shape.n_experts),))
    (ends,) = on.call("searchsorted", (expert, numbers), (layers(plan).up.ends,))
    return numbers, ends


def _sort(on: Writer, plan: Plan, by: Value) -> tuple[Value, Value]:
    """Sorted, and in which order."""
    visits = tensor(INT, n_visits(plan))
    ordered, order = on.call("sort", (by.viewed(visits),), (visits, visits))
    return ordered, order


def _selected(on: Writer, plan: Plan, rows: Value, order: Value) -> Value:
    """The rows in another order."""
    visits = _visits(plan, rows.operand.dtype)
    return on.call("index_select", (rows.viewed(visits), order), (visits,))[0]


def _scattered(on: Writer, plan: Plan, rows: Value, order: Value, dtype: str) -> Value:
    """The gradient of rows that were put in another order, added to zeros in place."""
    visits, (kept,) = _visits(plan, dtype), on.saved(order)
    (zeros,) = on.call("new_zeros", (rows.viewed(visits),), (visits,), bytes_read=0, held=(kept,))
    on.timed("index_add", zeros, kept, rows.viewed(visits), output=visits)
    return zeros


def _gate_backward(
    on: Writer, plan: Plan, saved: SavedExperts, gradient: Value
) -> tuple[Value, Value]:
    """From what was summed over a token's experts: the gradients of the shares in fp32, and of the results by
    token."""
    kept = on.saved(saved.by_token, saved.weight)
    whole = gradient.viewed(_by_token(plan, gradient.operand.dtype))
    stored_bytes = gradient.operand.n_bytes  # It is expanded.
    if sums_in_fp32(plan):
        (whole,) = on.call("_to_copy", (whole,), (_by_token(plan),), bytes_read=stored_bytes)
        stored_bytes = whole.operand.n_bytes
    made: list[Value] = []
    for other in (saved.weight.viewed(tensor(plan.compute, *_chosen(plan), 1)), saved.by_token):
        read = stored_bytes + other.operand.n_bytes
        made += on.call("mul", (whole, other), (whole.operand,), bytes_read=read, held=kept)
    by_token, product = made
    share = on.reduced("sum", product, *_chosen(plan), 1)
    on.use(whole, by_token, *kept)
    return on.cast(share.viewed(tensor(plan.compute, *_chosen(plan))), FLOAT), by_token


def _route_backward(on: Writer, plan: Plan, saved: SavedRoute, gradient: Value) -> Value:
    """Gradient of the shares in fp32 → of the logits in the compute type."""
    figures = tensor(FLOAT, *_chosen(plan))
    kept = on.saved(saved.share, saved.total)
    share, total = kept

    def divided(x: Value) -> Value:
        return on.call("div", (x, total), (figures,), held=kept)[0]

    into_share = divided(gradient)
    negative = on.pointwise("neg", gradient)
    quotient = divided(divided(share))
    product = on.pointwise("mul", negative, quotient)
    into_total = product
    if plan.shape.n_active_experts > 1:
        (into_total,) = on.call("sum", (product,), (total.operand,), held=kept)
    on.use(into_share, into_total)
    read = into_share.operand.n_bytes + total.operand.n_bytes
    if on.tape is not None:
        on.tape.call("add", (figures, figures), (figures,), bytes_read=read)
    likely = tensor(FLOAT, plan.tokens, plan.shape.n_experts)
    (zeros,) = on.call(
        "new_zeros", (into_share,), (likely,), bytes_read=0, held=on.saved(saved.chosen)
    )
    on.timed("scatter", zeros, saved.chosen, into_share, output=likely)
    widens = softmax_widens(plan)
    logits, *_ = on.call(
        "_softmax_backward_data",
        (zeros, *on.saved(saved.likely)),
        (of_type(likely, HALF) if widens else likely,),
        scratch=(likely.n_bytes,) * attention.SOFTMAX_TEMPORARIES,
    )
    return logits if widens else on.cast(logits, plan.compute)


def _tokens(plan: Plan) -> Operand:
    return tensor(plan.stored, plan.tokens, plan.shape.d_model)


def _chosen(plan: Plan) -> tuple[int, int]:
    return plan.tokens, plan.shape.n_active_experts


def _visits(plan: Plan, dtype: str) -> Operand:
    return tensor(dtype, n_visits(plan), plan.shape.d_model)


def _by_token(plan: Plan, dtype: str | None = None) -> Operand:
    """In the compute type unless another is named."""
    return tensor(dtype or plan.compute, *_chosen(plan), plan.shape.d_model)
