"""The parameters as tensors, in the order of the model, with the modules that own them."""

from functools import lru_cache
from typing import NamedTuple

from peakward.prediction.operators import experts, readout
from peakward.prediction.operators.linear import BLOCK, Linear, layers
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import alike, tensor
from peakward.records.op_graph import Operand


class Weight(NamedTuple):
    """A parameter of one module, or of the like one in every block."""

    module: str
    tensor: Operand
    n: int
    """How many blocks have it; 1 outside them."""


@lru_cache(maxsize=64)
def weights(plan: Plan) -> tuple[Weight, ...]:
    """All of them, each once: a tied head's is the embedding's."""
    shape = plan.shape
    table = tensor(plan.stored, shape.vocab_size, shape.d_model)
    found = [Weight("embedding", table, 1)]
    if shape.positions == "learned":
        rows = tensor(plan.stored, shape.max_seq_len, shape.d_model)
        found.append(Weight("position_embedding", rows, 1))
    layer = layers(plan)
    found += _norm(plan, f"{BLOCK}.attention_norm", shape.n_layers)
    found += _linear(layer.qkv, shape.n_layers) + _linear(layer.out, shape.n_layers)
    found += _norm(plan, f"{BLOCK}.ff_norm", shape.n_layers)
    found += _feed_forward(plan)
    found += _norm(plan, "readout.norm", 1)
    if not shape.tied_head:
        found += _linear(readout.head(plan), 1)
    return tuple(found)


def sizes(plan: Plan) -> list[int]:
    """Bytes of each of them, one by one."""
    return [n_bytes for each in weights(plan) for n_bytes in (each.tensor.n_bytes,) * each.n]


def every_weight(plan: Plan) -> tuple[Operand, ...]:
    """All of them as one list argument; gradients and moments are alike."""
    return alike(
        tuple(
            Operand(shape=each.tensor.shape, dtype=each.tensor.dtype, count=each.n)
            for each in weights(plan)
        )
    )


def _feed_forward(plan: Plan) -> list[Weight]:
    n = plan.shape.n_layers
    if plan.shape.n_experts == 1:
        return _linear(layers(plan).up, n) + _linear(layers(plan).down, n)
    router, *grouped = experts.layers(plan)
    return [*_linear(router, n), *(Weight(each.module, each.weight, n) for each in grouped)]


def _norm(plan: Plan, module: str, n: int) -> list[Weight]:
    vectors = 2 if plan.shape.norm == "layernorm" else 1
    return [Weight(module, tensor(plan.stored, plan.shape.d_model), n)] * vectors


def _linear(layer: Linear, n: int) -> list[Weight]:
    vector = [Weight(layer.module, layer.bias_vector, n)] if layer.bias else []
    return [Weight(layer.module, layer.weight, n), *vector]
