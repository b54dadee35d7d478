"""The linear layers of a block with one feed-forward network."""

from typing import NamedTuple

from peakward.prediction.operators.linear import Linear
from peakward.prediction.operators.plan import Plan

BLOCK = "blocks.*"


class Layers(NamedTuple):
    """`qkv` and `up` each stand for what the decoder packs in them."""

    qkv: Linear
    out: Linear
    up: Linear
    down: Linear


def layers(plan: Plan) -> Layers:
    """In the order in which they run; of several networks `experts.layers` are the last ones."""
    shape = plan.shape
    query, heads = shape.n_heads * shape.head_dim, shape.n_heads + 2 * shape.n_kv_heads
    width = 2 * shape.d_ff if shape.gated else shape.d_ff
    types = (plan.stored, plan.compute, plan.quantised)
    return Layers(
        qkv=Linear(
            f"{BLOCK}.attention.qkv", shape.d_model, heads * shape.head_dim, shape.qkv_bias, *types
        ),
        out=Linear(f"{BLOCK}.attention.out", query, shape.d_model, shape.bias, *types),
        up=Linear(f"{BLOCK}.ff.up", shape.d_model, width, shape.bias, *types),
        down=Linear(f"{BLOCK}.ff.down", shape.d_ff, shape.d_model, shape.bias, *types),
    )
