"""The closed form against the step itself, operator by operator."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.lab.levers.capture import capture
from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Pass, Workload
from peakward.records.model_shape import Activation, ModelShape, Norm, Positions
from tiers import in_full

SHAPE = ModelShape(
    name="small",
    vocab_size=61,
    n_layers=2,
    d_model=20,
    d_ff=28,
    n_heads=4,
    n_kv_heads=4,
    head_dim=6,
    max_seq_len=32,
)


def case(shape, configuration, workload):
    return ModelCase(
        model=shape,
        workload=Workload(**{"batch_size": 2, "seq_len": 14, **workload}),
        configuration=Configuration(**configuration),
        device="cpu",
    )


def assert_same(made):
    """Each operator with its count; only their order may differ."""
    closed, captured = set(op_graph(made).operators), set(capture(made).operators)
    assert (closed - captured, captured - closed) == (set(), set())


GPT2 = {
    "norm": "layernorm",
    "positions": "learned",
    "gated": False,
    "activation": "gelu-tanh",
    "tied_head": True,
    "qkv_bias": True,
    "bias": True,
}
EXPERTS = {"n_experts": 4, "n_active_experts": 2}
IN_ONE_KERNEL = {**EXPERTS, "d_model": 24, "d_ff": 32}
"""By the widths, of which 20 and 28 are taken in a loop; so is all of fp32."""
MIXTRAL = "mixtral-8x7b"
FP32, BF16, MIXED = ({"precision": each} for each in ("fp32", "bf16", "bf16-mixed"))
DECODE = {"pass_": "decode"}
SDPA, RECOMPUTED = {"attention": "sdpa"}, {"checkpointing": "every-block"}
GRID = {
    "forward": ({}, FP32, {"pass_": "forward"}),
    "forward bf16": ({}, BF16, {"pass_": "forward"}),
    "forward mixed": ({}, MIXED, {"pass_": "forward", "accumulate": 2}),
    "forward and backward": ({}, FP32, {"pass_": "forward_backward"}),
    "train step": ({}, FP32, {}),
    "train step bf16": ({}, BF16, {}),
    "train step mixed": ({}, MIXED, {}),
    "fused": ({}, {"optimizer": "adamw-fused"}, {}),
    "loop": ({}, {"optimizer": "adamw-loop", **BF16}, {}),
    "accumulate": ({}, MIXED, {"accumulate": 3}),
    "tied, accumulated": ({"tied_head": True}, BF16, {"accumulate": 2}),
    "gqa": ({"n_kv_heads": 2}, MIXED, {}),
    "mqa": ({"n_kv_heads": 1}, BF16, {}),
    "one sequence": ({}, BF16, {"batch_size": 1}),
    "two tokens": ({}, MIXED, {"batch_size": 1, "seq_len": 2}),
    "window": ({"window": 5}, MIXED, {}),
    "layernorm": ({"norm": "layernorm"}, BF16, {}),
    "gpt2": (GPT2, FP32, {"accumulate": 2}),
    "gpt2 mixed, recomputed": (GPT2, {**MIXED, **RECOMPUTED}, {}),
    "learned, to the last row": (GPT2, FP32, {"seq_len": 32}),
    "sinusoidal": ({"positions": "sinusoidal", "d_model": 21}, BF16, {}),
    "alibi": ({"positions": "alibi"}, BF16, {}),
    "alibi, mixed": ({"positions": "alibi", "n_heads": 6, "n_kv_heads": 3}, MIXED, {}),
    "relu": ({"activation": "relu", "gated": False}, FP32, {}),
    "gelu": ({"activation": "gelu"}, MIXED, {}),
    "sdpa": ({}, SDPA, {}),
    "sdpa without turned heads": ({"positions": "learned"}, {**SDPA, **BF16}, {}),
    "sdpa, gqa, mixed": ({"n_kv_heads": 2}, {**SDPA, **MIXED}, {}),
    "sdpa, window": ({"window": 5}, {**SDPA, **MIXED}, {}),
    "sdpa, window beyond": ({"window": 14}, {**SDPA, **BF16}, {}),
    "sdpa, alibi": ({"positions": "alibi", "window": 5}, {**SDPA, **MIXED}, {}),
    "recomputed": ({}, RECOMPUTED, {}),
    "recomputed, sdpa": ({"n_kv_heads": 2}, {**RECOMPUTED, **SDPA, **MIXED}, {"accumulate": 2}),
    "recomputed in runs of 3 and 2": (
        {"n_layers": 5},
        {"checkpointing": "sqrt", **MIXED},
        {"accumulate": 2},
    ),
    "sdpa-flash": ({}, {"attention": "sdpa-flash", **BF16}, {}),
    "tf32": ({}, {"precision": "tf32"}, {}),
    "recomputed, forward": ({}, RECOMPUTED, {"pass_": "forward"}),
    "experts": (EXPERTS, FP32, {}),
    "experts, forward": (EXPERTS, BF16, {"pass_": "forward"}),
    "experts, mixed, in a loop": (EXPERTS, MIXED, {"accumulate": 2}),
    "experts, in one kernel": (IN_ONE_KERNEL, BF16, {}),
    "experts, in one kernel, mixed": (IN_ONE_KERNEL, {**MIXED, **RECOMPUTED}, {}),
    "experts, up in one kernel": ({**EXPERTS, "d_model": 24, "d_ff": 28}, BF16, {}),
    "experts, one active": ({**IN_ONE_KERNEL, "n_active_experts": 1}, MIXED, {}),
    "experts, all active": ({**EXPERTS, "n_active_experts": 4}, {"checkpointing": "sqrt"}, {}),
    "experts, not gated": ({**EXPERTS, "gated": False, "activation": "relu"}, RECOMPUTED, {}),
    "more experts than visits": ({**EXPERTS, "n_experts": 90}, FP32, {}),
    "more experts than visits, mixed": ({**IN_ONE_KERNEL, "n_experts": 90}, MIXED, {}),
    "prefill": ({}, MIXED, {"pass_": "prefill"}),
    "prefill, sdpa": ({"n_kv_heads": 2, "window": 5}, {**BF16, **SDPA}, {"pass_": "prefill"}),
    "prefill, gpt2": (GPT2, FP32, {"pass_": "prefill"}),
    "decode": ({}, FP32, DECODE),
    "decode mixed": ({}, MIXED, DECODE),
    "decode, nothing kept": ({"n_kv_heads": 2}, {**MIXED, "kv_cache": "none"}, DECODE),
    "decode, nothing kept, sdpa": ({}, {**SDPA, "kv_cache": "none"}, DECODE),
    "decode, one sequence": ({}, BF16, {**DECODE, "batch_size": 1}),
    "decode, two positions": ({}, MIXED, {**DECODE, "seq_len": 2}),
    "decode, gqa": ({"n_kv_heads": 2}, MIXED, DECODE),
    "decode, mqa, window": ({"n_kv_heads": 1, "window": 5}, BF16, DECODE),
    "decode, window of one": ({"window": 1}, BF16, DECODE),
    "decode, gpt2": (GPT2, MIXED, DECODE),
    "decode, sinusoidal": ({"positions": "sinusoidal", "d_model": 21}, BF16, DECODE),
    "decode, alibi, window": ({"positions": "alibi", "window": 5}, MIXED, DECODE),
    "decode, sdpa": ({}, SDPA, DECODE),
    "decode, sdpa, gqa, mixed": ({"n_kv_heads": 2, "window": 5}, {**SDPA, **MIXED}, DECODE),
    "decode, sdpa, alibi": ({"positions": "alibi"}, {**SDPA, **BF16}, DECODE),
    "decode, sdpa, window of one": ({"window": 1}, {**SDPA, **BF16}, DECODE),
}


QUICK = (
    "forward",
    "train step mixed",
    "loop",
    "gqa",
    "gpt2",
    "alibi, mixed",
    "sdpa, window",
    "recomputed, sdpa",
    "experts, mixed, in a loop",
    "experts, in one kernel, mixed",
    "prefill, sdpa",
    "decode, mqa, window",
    "decode, nothing kept",
)
"""One of each kind; the others in the full tier."""


@pytest.mark.parametrize("name", [*QUICK, *in_full(name for name in GRID if name not in QUICK)])
def test_over_the_settings(name):
    changes, configuration, workload = GRID[name]
    assert_same(case(msgspec.structs.replace(SHAPE, **changes), configuration, workload))


@pytest.mark.parametrize(
    "name",
    ["mistral-7b", *in_full(["2.7B", "gpt2-xl", "llama-3-8b", "qwen2.5-7b", MIXTRAL])],
)
def test_on_the_catalogues_shapes_at_full_width(name):
    """But with two layers, to stay quick: `test_op_graph` shows that each layer adds the same."""
    shape = msgspec.structs.replace(model(name), n_layers=2)
    assert_same(case(shape, MIXED, {"seq_len": 1024}))


@st.composite
def cases(draw):
    def one_of(*values):
        return draw(st.sampled_from(values))

    n_kv_heads = draw(st.integers(1, 3))
    pass_ = one_of(*get_args(Pass))
    caches = pass_ in ("prefill", "decode")
    n_experts = 1 if caches else draw(st.integers(1, 5))
    shape = ModelShape(
        name="drawn",
        vocab_size=draw(st.integers(1, 50)),
        n_layers=draw(st.integers(1, 3)),
        d_model=draw(st.integers(2, 20)),
        d_ff=draw(st.integers(1, 20)),
        n_heads=n_kv_heads * draw(st.integers(1, 3)),
        n_kv_heads=n_kv_heads,
        head_dim=2 * draw(st.integers(2, 6)),
        max_seq_len=24,
        norm=one_of(*get_args(Norm)),
        activation=one_of(*get_args(Activation)),
        gated=draw(st.booleans()),
        positions=one_of(*get_args(Positions)),
        window=draw(st.none() | st.integers(1, 30)),
        tied_head=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
        bias=n_experts == 1 and draw(st.booleans()),
        n_experts=n_experts,
        n_active_experts=draw(st.integers(1, n_experts)),
    )
    configuration = {
        "precision": one_of("fp32", "bf16", "bf16-mixed"),
        "attention": one_of("naive", "sdpa"),
        "checkpointing": "none" if caches else one_of("none", "sqrt", "every-block"),
        "optimizer": one_of("adamw-foreach", "adamw-fused", "adamw-loop"),
    }
    workload = {
        "batch_size": draw(st.integers(1, 3)),
        "seq_len": draw(st.integers(2, 24)),
        "pass_": pass_,
        "accumulate": 1 if caches else draw(st.integers(1, 2)),
    }
    return case(shape, configuration, workload)


@pytest.mark.full
@settings(max_examples=15)
@given(cases())
def test_over_random_shapes_and_settings(made):
    assert_same(made)


ON_16 = {"d_model": 32, "d_ff": 48, "head_dim": 8, "norm": "layernorm"}
"""Sides of fp8 products; RMSNorm is taken apart on a CPU."""
FP8 = {
    "plain": ({}, {}, {}),
    "biases": ({"bias": True, "qkv_bias": True}, {}, {}),
    "forward": ({"bias": True}, {}, {"pass_": "forward"}),
    "swiglu": ({}, {"swiglu": "fused"}, {}),
    "swiglu with biases": ({"bias": True}, {"swiglu": "fused"}, {}),
    "swiglu forward": ({}, {"swiglu": "fused"}, {"pass_": "forward"}),
    "swiglu recomputed": ({}, {**RECOMPUTED, "swiglu": "fused"}, {}),
    "recomputed": ({"bias": True}, RECOMPUTED, {}),
    "selective": ({}, {"checkpointing": "selective"}, {}),
    "decode": ({}, {}, {"pass_": "decode", "batch_size": 16}),
}


FP8_QUICK = ("biases", "swiglu")


@pytest.mark.parametrize(
    "name", [*FP8_QUICK, *in_full(each for each in FP8 if each not in FP8_QUICK)]
)
def test_fp8_of_cuda_is_what_runs_here(name):
    """The closed form knows fp8 on CUDA alone; its kernels run here in Triton's interpreter."""
    pytest.importorskip("triton")
    changes, settings, work = FP8[name]
    shape = msgspec.structs.replace(SHAPE, **ON_16, **changes)
    work = {"pass_": "forward_backward", "seq_len": 16, **work}
    made = case(shape, {"precision": "fp8", **settings}, work)
    closed = set(op_graph(msgspec.structs.replace(made, device="cuda")).operators)
    captured = set(capture(made).operators)
    assert (closed - captured, captured - closed) == (set(), set())
