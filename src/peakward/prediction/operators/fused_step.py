"""The operators of a fused step of decode: five kernels a layer, one before them and one behind
(`kernels.ops.decode_step`).

Norms, RoPE, SwiGLU, sums with the residual stream and writes to the cache are within them, and move what
fits in no figure beside the weights and the cache.
"""

from peakward.levers import decode_step
from peakward.prediction.operators import readout
from peakward.prediction.operators.attention_kernels import PRODUCTS
from peakward.prediction.operators.heads import held_keys, product_flops, queries, scales
from peakward.prediction.operators.linear import BLOCK, Linear, layers
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import INT, Tape, tensor
from peakward.records.op_graph import Operand


def embedding_forward(tape: Tape, plan: Plan) -> None:
    """Ids to the residual stream; the angles of all positions are there."""
    table = tensor(plan.stored, plan.shape.vocab_size, plan.shape.d_model)
    ids = tensor(INT, plan.batch, plan.seq)
    with tape.module("embedding"):
        read = ids.n_bytes + plan.hidden.n_bytes
        tape.own(decode_step.EMBEDDED, (table, ids), (plan.hidden,), bytes_read=read)


def block_forward(tape: Tape, plan: Plan) -> None:
    """The residual stream → the same behind the block."""
    layer, shape = layers(plan), plan.shape
    _product(tape, plan, layer.qkv, plan.hidden)
    with tape.module(f"{BLOCK}.attention"):
        _attention(tape, plan)
    mixed = tensor(plan.compute, plan.batch, plan.seq, shape.n_heads * shape.head_dim)
    _product(tape, plan, layer.out, mixed)
    _product(tape, plan, layer.up, plan.hidden)
    _product(tape, plan, layer.down, tensor(plan.compute, plan.batch, plan.seq, shape.d_ff))


def readout_forward(tape: Tape, plan: Plan) -> None:
    """The residual stream → the logits."""
    _product(tape, plan, readout.head(plan), plan.hidden)


def _product(tape: Tape, plan: Plan, layer: Linear, x: Operand) -> None:
    y = tensor(layer.compute, plan.batch, plan.seq, layer.n_out)
    kept = (
        (layer.weight,)
        if layer.quantised is None
        else layer.quantised.kept(layer.n_in, layer.n_out)
    )
    bits = None if layer.quantised is None else layer.quantised.bits
    with tape.module(layer.module):
        name = decode_step.product(bits, n_rows=plan.tokens)
        tape.own(name, (x, *kept), (y,), flops=2 * x.n_elements * layer.n_out)


def _attention(tape: Tape, plan: Plan) -> None:
    q, held = queries(plan), held_keys(plan)
    in_bytes = plan.narrow_cache is not None
    name = decode_step.ATTENTION_TO_INT8 if in_bytes else decode_step.ATTENTION
    flops = PRODUCTS * product_flops(q, held)
    tape.own(name, (q, held, held, *scales(plan)), (q,), flops=flops)
