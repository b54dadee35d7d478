"""A shape and workloads that several tests serve."""

from typing import Any

import msgspec

from peakward.prediction.floor import Ceilings
from peakward.records.inference import ServingWorkload, WeightFormat
from peakward.records.model_shape import ModelShape

replace: Any = msgspec.structs.replace

CEILINGS = Ceilings("H100", 989e12, 3350e9, "datasheet")
BF16 = WeightFormat(type="bf16")
INT8 = WeightFormat(type="int8")
INT4 = WeightFormat(type="int4", group_size=128)

SMALL = ModelShape(
    name="small-gqa",
    vocab_size=50,
    n_layers=3,
    d_model=8,
    d_ff=20,
    n_heads=4,
    n_kv_heads=2,
    head_dim=6,
    max_seq_len=64,
)
"""Of one block: queries 8·24, keys and values 2·8·12, output 24·8, feed-forward 3·8·20."""
SMALL_BLOCK = 8 * 24 + 2 * 8 * 12 + 24 * 8 + 3 * 8 * 20


def workload(**settings: Any) -> ServingWorkload:
    return ServingWorkload(**{"batch_size": 2, "prompt_len": 16, "output_len": 5, **settings})
