"""What a block's mixture of experts holds (`lab/models/experts.py`), line by line."""

from typing import NamedTuple

from peakward.prediction.memory import activation, grouped_linear, linear, naive_attention
from peakward.prediction.memory.activation import SavedActivation
from peakward.prediction.memory.grouped_linear import SavedGroups, Visits
from peakward.prediction.memory.linear import SavedLinear
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators import experts
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, INT, INT32
from peakward.records.op_graph import ITEM_BYTES


class SavedRoute(NamedTuple):
    """Of the router: what its product keeps, all likelihoods, the choice, and the division's
    operands."""

    router: SavedLinear
    likely: int
    chosen: int
    share: int
    total: int


class SavedExperts(NamedTuple):
    """What autograd keeps of all parts: both orders of the visits, the results and their weights."""

    route: SavedRoute
    order: int
    up: SavedGroups
    activation: SavedActivation
    down: SavedGroups
    back: int
    by_token: int
    weight: int


def forward(line: Timeline, plan: Plan, x: int) -> tuple[SavedExperts, int]:
    """The normed residual stream → what is added to it."""
    saved, held = _until_saved(line, plan, x)
    weighed = line.op(_visits(plan, plan.compute), saved.by_token, saved.weight)
    y = line.op(experts.result(plan).n_bytes, weighed)
    line.use(*held)
    return saved, y


def until_saved(line: Timeline, plan: Plan, x: int) -> SavedExperts:
    """As far as torch recomputes it: until every result is there, by token, with its weight."""
    saved, held = _until_saved(line, plan, x)
    line.use(*held)
    return saved


def backward(line: Timeline, plan: Plan, saved: SavedExperts, gradient: int) -> int:
    """Gradient of the result → of the normed residual stream."""
    rows = experts.n_visits(plan)
    share, by_token = _gate_backward(line, plan, saved, gradient)
    visited = line.op(_visits(plan, plan.compute), by_token, *line.saved(saved.back))
    product = grouped_linear.backward(line, saved.down, visited, rows, plan.compute)
    widened = activation.backward(line, plan, saved.activation, product, rows)
    visiting = grouped_linear.backward(line, saved.up, widened, rows, plan.stored)
    x = line.op(_visits(plan, plan.stored), visiting, *line.saved(saved.order))
    if plan.shape.n_active_experts > 1:
        x = line.op(plan.hidden.n_bytes, x)
    logits = _route_backward(line, plan, saved.route, share)
    routed = linear.backward(line, saved.route.router, logits, plan.tokens, plan.stored)
    line.use(x, routed)  # Added to in place.
    return x


def _until_saved(line: Timeline, plan: Plan, x: int) -> tuple[SavedExperts, tuple[int, ...]]:
    """What is saved, and what locals hold on to."""
    layer, rows = experts.layers(plan), experts.n_visits(plan)
    route, share = _route(line, plan, x)
    visit = rows * ITEM_BYTES[INT]
    expert, order = line.ops((visit, visit), route.chosen)
    numbers = line.op(plan.shape.n_experts * ITEM_BYTES[INT])
    ends = line.op(plan.shape.n_experts * ITEM_BYTES[INT32], expert, numbers)
    visits = Visits(rows, ends)
    repeated = line.op(_visits(plan, plan.stored), x)
    visiting = line.op(_visits(plan, plan.stored), repeated, order)
    up, widened = grouped_linear.forward(line, layer.up, visiting, visits, plan.stored)
    activated, product = activation.forward(line, plan, widened, rows)
    down, visited = grouped_linear.forward(line, layer.down, product, visits, plan.compute)
    line.use(widened)
    _, back = line.ops((visit, visit), order)
    by_token = line.op(_visits(plan, plan.compute), visited, back)
    weight = share
    if plan.compute != FLOAT:
        weight = line.op(_figures(plan, plan.compute), share)
    held = (x, share, route.chosen, expert, order, numbers, ends, visiting, visited, by_token)
    saved = SavedExperts(route, order, up, activated, down, back, by_token, weight)
    return saved, held


def _route(line: Timeline, plan: Plan, x: int) -> tuple[SavedRoute, int]:
    """The saved, and each token's weights of its experts in fp32."""
    layer = experts.layers(plan)
    router, logits = linear.forward(line, layer.router, x, plan.tokens, plan.stored)
    given = logits
    if plan.compute != FLOAT and not experts.softmax_widens(plan):
        given = line.op(_likelihoods(plan, FLOAT), logits)
    likely = line.op(_likelihoods(plan, FLOAT), given)
    share, chosen = line.ops((_figures(plan, FLOAT), _figures(plan, INT)), likely)
    total = line.op(plan.tokens * ITEM_BYTES[FLOAT], share)
    divided = line.op(_figures(plan, FLOAT), share, total)
    line.use(logits, likely)
    return SavedRoute(router, likely, chosen, share, total), divided


def _gate_backward(
    line: Timeline, plan: Plan, saved: SavedExperts, gradient: int
) -> tuple[int, int]:
    """Gradients of the weights in fp32, and of the results by token: each first as large as these."""
    size = _visits(plan, plan.compute)
    kept = line.saved(saved.by_token, saved.weight)
    if experts.sums_in_fp32(plan):
        gradient = line.op(size, gradient)  # Of each expert's result, and no more expanded.
    by_token = line.op(size, gradient, *kept)
    product = line.op(size, gradient, *kept)
    share = line.op(_figures(plan, plan.compute), product)
    line.use(gradient, by_token, *kept)
    if plan.compute != FLOAT:
        share = line.op(_figures(plan, FLOAT), share)
    return share, by_token


def _route_backward(line: Timeline, plan: Plan, saved: SavedRoute, gradient: int) -> int:
    """Gradient of the weights → of the logits."""
    figures, likelihoods = _figures(plan, FLOAT), _likelihoods(plan, FLOAT)
    kept = line.saved(saved.share, saved.total)
    share = line.op(figures, gradient, *kept)
    negative = line.op(figures, gradient)
    quotient = line.op(figures, line.op(figures, *kept), *kept)
    product = line.op(figures, negative, quotient)
    line.use(share, line.op(plan.tokens * ITEM_BYTES[FLOAT], product, *kept))
    likely = line.op(likelihoods, share, *line.saved(saved.chosen))
    widens = experts.softmax_widens(plan)
    result = _likelihoods(plan, plan.compute) if widens else likelihoods
    sizes = (result,) + (likelihoods,) * naive_attention.SOFTMAX_TEMPORARIES
    logits, *_ = line.ops(sizes, likely, *line.saved(saved.likely))
    if plan.compute == FLOAT or widens:
        return logits
    return line.op(_likelihoods(plan, plan.compute), logits)


def _figures(plan: Plan, dtype: str) -> int:
    """One for each visit."""
    return experts.n_visits(plan) * ITEM_BYTES[dtype]


def _likelihoods(plan: Plan, dtype: str) -> int:
    return plan.tokens * plan.shape.n_experts * ITEM_BYTES[dtype]


def _visits(plan: Plan, dtype: str) -> int:
    """A row of the residual stream for each visit."""
    return experts.n_visits(plan) * plan.shape.d_model * ITEM_BYTES[dtype]
