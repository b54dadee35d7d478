"""Building a model whose weights are quantised: each is drawn and quantised in its turn, and no other one is
there densely beside it (`lab/models/decoder.py`, `lab/models/layers.py`)."""

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.layers import layers
from peakward.prediction.operators.linear import Linear
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, of_type
from peakward.prediction.operators.weights import weights

CHUNK_ELEMENTS = 1 << 22
"""Quantised at once."""


def build(line: Timeline, plan: Plan) -> None:
    """All parameters that stay as they are, then each parameter's values in fp32, one at a time."""
    quantised = {(each.module, each.weight): each for each in layers(plan)}
    every = weights(plan)
    for weight in every:
        if (weight.module, weight.tensor) not in quantised:
            for _ in range(weight.n):
                line.keep(line.op(weight.tensor.n_bytes, category="parameters"))
    outside = [each for each in every if each.n == 1]
    of_a_block = [each for each in every if each.n > 1]
    for weight in [*outside[:1], *plan.shape.n_layers * of_a_block, *outside[1:]]:
        drawn = line.op(of_type(weight.tensor, FLOAT).n_bytes)
        if (layer := quantised.get((weight.module, weight.tensor))) is not None:
            _quantise(line, layer, drawn)


def _quantise(line: Timeline, layer: Linear, drawn: int) -> None:
    stored, dense = layer.quantised, drawn
    assert stored is not None
    if layer.stored != FLOAT:
        dense = line.op(layer.weight.n_bytes, drawn)
    sizes = [each.n_bytes for each in stored.kept(layer.n_in, layer.n_out)]
    line.keep(*line.ops(sizes, dense, category="parameters"))
    rows = min(layer.n_out, max(1, CHUNK_ELEMENTS // layer.n_in))
    bytes_each = stored.chunk_bytes + (4 if layer.stored != FLOAT else 0)
    line.op(int(rows * layer.n_in * bytes_each), dense, drawn)
