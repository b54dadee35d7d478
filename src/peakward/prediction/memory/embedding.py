"""Token embedding and what tells positions."""

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, INT
from peakward.records.op_graph import ITEM_BYTES


def forward(line: Timeline, plan: Plan) -> tuple[int, tuple[int, ...]]:
    """Ids → the residual stream, and what every block shares."""
    shape = plan.shape
    x = line.op(plan.hidden.n_bytes)
    if shape.positions == "learned":
        x = line.op(plan.hidden.n_bytes, x)
    elif shape.positions == "sinusoidal":
        rows = line.op(plan.seq * shape.d_model * ITEM_BYTES[FLOAT])
        x = line.op(plan.hidden.n_bytes, x, rows)
    elif shape.positions == "rope":
        angles = plan.seq * shape.head_dim // 2 * ITEM_BYTES[plan.stored]
        return x, line.ops((angles, angles))
    else:
        square = plan.seq * plan.keys
        distance = line.op(square * ITEM_BYTES[INT], line.op(square * ITEM_BYTES[INT]))
        return x, (line.op(square * shape.n_heads * ITEM_BYTES[FLOAT], distance),)
    return x, ()


def backward(line: Timeline, plan: Plan, gradient: int) -> None:
    """Gradient of the residual stream → of the tables. A tied one has the head's there already, to
    which it is added."""
    shape, size = plan.shape, ITEM_BYTES[plan.stored]
    if shape.positions == "learned":
        rows = line.op(plan.seq * shape.d_model * size, gradient)
        line.gradient(shape.max_seq_len * shape.d_model * size, rows)
    # The ids, sorted, and where each came from (ATen/native/cuda/Embedding.cu).
    sorting = (plan.tokens * ITEM_BYTES[INT],) * 4
    scratch = line.ops(sorting, gradient)
    table = shape.vocab_size * shape.d_model * size
    if shape.tied_head:
        line.op(table, gradient, *scratch)
    else:
        line.gradient(table, gradient, *scratch)
