"""The closed formulas of `prediction` against the instantiated decoder, on the meta device."""

import math

import msgspec
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.levers import compilation
from peakward.lab.models.decoder import Decoder, build
from peakward.models.presets import MODELS
from peakward.prediction.flops import attended_pairs, forward_flops, recomputed_flops
from peakward.prediction.parameters import n_active_parameters, n_parameters
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.model_shape import ModelShape
from tiers import in_full

BATCH, SEQ_LEN = 2, 48


def on_meta(shape: ModelShape) -> Decoder:
    """In bf16, whose grouped matmul is one operator: a loop would have to know the routing."""
    with torch.device("meta"):
        return Decoder(shape, implementation("naive")).bfloat16()


def active_elements(parameter: torch.Tensor, shape: ModelShape) -> int:
    """Elements of a tensor that one token goes through: of the experts', the slices it chose."""
    return (
        parameter[: shape.n_active_experts].numel() if parameter.dim() == 3 else parameter.numel()
    )


def grouped_flops(a, b, *args, out_shape, **kwargs) -> int:
    """torch's counter does not know this operator. Rows times a matrix of their group, or for its
    gradient, all rows of both: each row of the longest side goes through one matrix."""
    rows = a[0] if len(b) == 3 else a[1]
    return 2 * rows * math.prod(b[-2:] if len(b) == 3 else (a[0], b[1]))


def few_layers(shape: ModelShape) -> ModelShape:
    return msgspec.structs.replace(shape, n_layers=min(shape.n_layers, 5))


def counted_flops(model: Decoder, *, backward: bool) -> int:
    ids = torch.zeros(BATCH, SEQ_LEN, dtype=torch.int64, device="meta")
    grouped = {torch.ops.aten._grouped_mm: grouped_flops}
    with FlopCounterMode(display=False, custom_mapping=grouped) as counter:
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
    model = on_meta(shape)
    assert sum(each.numel() for each in model.parameters()) == n_parameters(shape)
    assert sum(active_elements(each, shape) for each in model.parameters()) == n_active_parameters(
        shape
    )


OPTIONS = {
    "plain": {},
    "biases": {"qkv_bias": True, "bias": True},
    "layernorm, no gate, bias": {"norm": "layernorm", "gated": False, "bias": True},
    "learned, tied": {"positions": "learned", "tied_head": True},
    "mqa": {"n_kv_heads": 1},
    "heads that do not fill d_model": {"head_dim": 6},
    "window": {"window": 10},
    "experts": {"n_experts": 4, "n_active_experts": 2},
    "experts, no gate": {"n_experts": 3, "n_active_experts": 3, "gated": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_option_is_counted(options, make_shape):
    shape = make_shape(max_seq_len=64, **options)
    model = on_meta(shape)
    assert sum(each.numel() for each in model.parameters()) == n_parameters(shape)
    expected = forward_flops(shape, BATCH, SEQ_LEN) + masked_flops(shape)
    assert counted_flops(model, backward=False) == expected


QUICK = ("gpt2", "llama-3.2-1b", "mixtral-8x7b")


@pytest.mark.parametrize(
    "shape",
    [
        *(each for each in MODELS if each.name in QUICK),
        *in_full(each for each in MODELS if each.name not in QUICK),
    ],
    ids=lambda shape: shape.name,
)
def test_flops_are_those_of_the_module(shape):
    shape = few_layers(shape)
    model = on_meta(shape)
    forward = forward_flops(shape, BATCH, SEQ_LEN) + masked_flops(shape)
    assert counted_flops(model, backward=False) == forward
    assert counted_flops(model, backward=True) == 3 * forward


@pytest.mark.parametrize("gated", [True, False])
def test_flops_of_experts_are_those_of_their_loop(gated, make_shape):
    """Every product of its own, as torch's counter finds them in the reference in fp32."""
    shape = make_shape(n_experts=5, n_active_experts=2, gated=gated)
    model = build(
        shape, attention=implementation("naive"), device="cpu", dtype=torch.float32, seed=0
    )
    ids = torch.randint(61, (BATCH, 32), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        model(ids, ids).backward()
    pairs = 32**2 - attended_pairs(32, window=None)
    masked = 4.0 * BATCH * shape.n_layers * shape.n_heads * shape.head_dim * pairs
    assert counter.get_total_flops() == 3 * (forward_flops(shape, BATCH, 32) + masked)


@pytest.mark.parametrize(
    ("mode", "segments"), [("sqrt", 2), ("every-block", 5), ("selective", 0), ("none", 0)]
)
@pytest.mark.parametrize("experts", [1, *in_full([4])])
def test_recomputed_flops_are_those_of_the_module(mode, segments, experts, make_shape):
    """But for the last product of each segment, which torch knows that nobody waits for: in a
    dense block, since the shares of a mixture's experts need what they gave for their gradient."""
    shape = make_shape(
        n_layers=5, max_seq_len=64, n_experts=experts, n_active_experts=math.ceil(experts / 2)
    )
    model = on_meta(shape)
    compilation.apply_checkpointing(model, mode)
    case = ModelCase(
        model=shape,
        workload=Workload(batch_size=BATCH, seq_len=SEQ_LEN),
        configuration=Configuration(checkpointing=mode),
        device="cpu",
    )
    dense = experts == 1
    spared = dense * segments * 2.0 * BATCH * SEQ_LEN * shape.d_model * shape.d_ff
    masked = masked_flops(shape) if segments else 0.0
    recomputed = counted_flops(model, backward=True) - counted_flops(on_meta(shape), backward=True)
    assert recomputed == recomputed_flops(case) + masked - spared
