"""The closed formulas of `predict` against the instantiated decoder, on the meta device."""

import msgspec
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from peakward.catalogue.models import MODELS
from peakward.lab.levers import checkpointing
from peakward.lab.models.decoder import Decoder
from peakward.lab.ops.attention.api import implementation
from peakward.predict.flops import attended_pairs, forward_flops, recomputed_flops
from peakward.predict.parameters import n_parameters
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.model_shape import ModelShape

BATCH, SEQ_LEN = 2, 48


def on_meta(shape: ModelShape) -> Decoder:
    with torch.device("meta"):
        return Decoder(shape, implementation("naive"))


def few_layers(shape: ModelShape) -> ModelShape:
    return msgspec.structs.replace(shape, n_layers=min(shape.n_layers, 5))


def counted_flops(model: Decoder, *, backward: bool) -> int:
    ids = torch.zeros(BATCH, SEQ_LEN, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        if backward:
            model(ids, ids).backward()
        else:
            model(ids)
    return counter.get_total_flops()


def masked_flops(shape: ModelShape) -> float:
    """What the naive implementation computes and the mask throws away, in one forward pass."""
    pairs = SEQ_LEN**2 - attended_pairs(SEQ_LEN, window=shape.window)
    return 4.0 * BATCH * shape.n_layers * shape.n_heads * shape.head_dim * pairs


@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: shape.name)
def test_parameters_are_those_of_the_module(shape):
    assert sum(each.numel() for each in on_meta(shape).parameters()) == n_parameters(shape)


OPTIONS = {
    "plain": {},
    "biases": {"qkv_bias": True, "bias": True},
    "layernorm, no gate, bias": {"norm": "layernorm", "gated": False, "bias": True},
    "learned, tied": {"positions": "learned", "tied_head": True},
    "mqa": {"n_kv_heads": 1},
    "heads that do not fill d_model": {"head_dim": 6},
    "window": {"window": 10},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_option_is_counted(options, make_shape):
    shape = make_shape(max_seq_len=64, **options)
    model = on_meta(shape)
    assert sum(each.numel() for each in model.parameters()) == n_parameters(shape)
    expected = forward_flops(shape, BATCH, SEQ_LEN) + masked_flops(shape)
    assert counted_flops(model, backward=False) == expected


@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: shape.name)
def test_flops_are_those_of_the_module(shape):
    shape = few_layers(shape)
    model = on_meta(shape)
    forward = forward_flops(shape, BATCH, SEQ_LEN) + masked_flops(shape)
    assert counted_flops(model, backward=False) == forward
    assert counted_flops(model, backward=True) == 3 * forward


@pytest.mark.parametrize(
    ("mode", "segments"), [("sqrt", 2), ("every-block", 5), ("selective", 0), ("none", 0)]
)
def test_recomputed_flops_are_those_of_the_module(mode, segments, make_shape):
    """But for the last product of each segment, which torch knows that nobody waits for."""
    shape = make_shape(n_layers=5, max_seq_len=64)
    model = on_meta(shape)
    checkpointing.apply(model, mode)
    case = ModelCase(
        model=shape,
        workload=Workload(batch_size=BATCH, seq_len=SEQ_LEN),
        configuration=Configuration(checkpointing=mode),
        device="cpu",
    )
    spared = segments * 2.0 * BATCH * SEQ_LEN * shape.d_model * shape.d_ff
    masked = masked_flops(shape) if segments else 0.0
    recomputed = counted_flops(model, backward=True) - counted_flops(on_meta(shape), backward=True)
    assert recomputed == recomputed_flops(case) + masked - spared
