"""The closed form against the step itself on this GPU, operator by operator.

As `tests/unit/prediction/operators/test_against_capture.py` for a CPU; what an H200 showed of many
more settings is held by `test_against_h200.py` there, without a GPU.
"""

import msgspec
import pytest
import torch

from peakward.lab.levers.capture import capture
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import READ_BY_HOST

pytestmark = pytest.mark.gpu


@pytest.fixture
def stated():
    """stated(case): in closed form, on this GPU."""

    def state(case):
        capability = torch.cuda.get_device_capability()
        return op_graph(case, compute_capability=capability)

    return state


GPT2 = {
    "norm": "layernorm",
    "positions": "learned",
    "gated": False,
    "activation": "gelu-tanh",
    "tied_head": True,
    "qkv_bias": True,
    "bias": True,
}
FP32, BF16, FP16, FP8, MIXED = (
    {"precision": each} for each in ("fp32", "bf16", "fp16-mixed", "fp8", "bf16-mixed")
)
SDPA, EFFICIENT, MATH = ({"attention": each} for each in ("sdpa", "sdpa-efficient", "sdpa-math"))
FLASH, HOPPER = ({"attention": each} for each in ("flash", "flash-hopper"))
OWN = {"norm": "fused", "rope": "fused", "swiglu": "fused"}
RECOMPUTED, SELECTIVE = ({"checkpointing": each} for each in ("every-block", "selective"))
FORWARD, PREFILL, DECODE = ({"pass_": each} for each in ("forward", "prefill", "decode"))
EXPERTS = {"n_experts": 4, "n_active_experts": 4}
"""All are active, for otherwise values decide how many rows each has."""
ROUTED = {"n_experts": 4, "n_active_experts": 2}
"""In one kernel, whose shapes do not tell."""
WHOLE_GROUPS = {"d_model": 128, "d_ff": 256, "n_heads": 2, "n_kv_heads": 2, "head_dim": 64}
ODD = {"workload": {"seq_len": 50}}
GRID = {
    "forward": ({}, FP32, FORWARD),
    "forward bf16": ({}, {**BF16, **SDPA}, FORWARD),
    "forward fp32, sdpa": ({}, SDPA, FORWARD),
    "forward and backward": ({}, MIXED, {"pass_": "forward_backward"}),
    "layernorm": ({"norm": "layernorm"}, BF16, {}),
    "gpt2": (GPT2, FP32, {"workload": {"accumulate": 2}}),
    "gpt2, sdpa, mixed": (GPT2, {**MIXED, **SDPA}, {}),
    "sinusoidal": ({"positions": "sinusoidal", "d_model": 126}, {**BF16, **SDPA}, {}),
    "one sequence": ({}, {**BF16, **SDPA}, {"workload": {"batch_size": 1}}),
    "tf32": ({}, {"precision": "tf32", **SDPA}, {}),
    "fp16": ({}, FP16, {"workload": {"accumulate": 2}}),
    "fp16, forward": ({}, FP16, FORWARD),
    "fp16, without an update": ({}, {**FP16, **SDPA}, {"pass_": "forward_backward"}),
    "fp16, fused": ({}, {**FP16, **SDPA, "optimizer": "adamw-fused"}, {}),
    "fp16, loop": ({"positions": "alibi"}, {**FP16, "optimizer": "adamw-loop"}, {}),
    "fp16, math, grouped": ({"n_kv_heads": 1}, {**FP16, **MATH}, {}),
    "sdpa": ({}, SDPA, {}),
    "sdpa, bf16": ({}, {**SDPA, **BF16}, {}),
    "sdpa, grouped": ({"n_kv_heads": 1}, {**SDPA, **MIXED}, {}),
    "sdpa, grouped, fp32": ({"n_kv_heads": 1}, SDPA, {}),
    "sdpa, window": ({"window": 5}, {**SDPA, **MIXED}, {}),
    "sdpa, window, fp32": ({"window": 5}, SDPA, {}),
    "sdpa, window beyond": ({"window": 64}, {**SDPA, **BF16}, {}),
    "sdpa, alibi": ({"positions": "alibi", "window": 5}, {**SDPA, **MIXED}, {}),
    "sdpa, padded heads": ({"head_dim": 12}, {**SDPA, **BF16}, {}),
    "sdpa, padded heads, packed": ({"head_dim": 12, **GPT2}, {**SDPA, **MIXED}, {}),
    "sdpa, padded heads, grouped": ({"head_dim": 12, "n_kv_heads": 1}, {**SDPA, **BF16}, {}),
    "sdpa, heads of no kernel": ({"head_dim": 6}, SDPA, {}),
    "sdpa, masked heads of no kernel": ({"head_dim": 12, "window": 5}, {**SDPA, **BF16}, {}),
    "sdpa, wide heads": ({"head_dim": 192}, {**SDPA, **BF16}, {}),
    "efficient": ({}, {**EFFICIENT, **BF16}, {}),
    "efficient, odd": ({}, {**EFFICIENT, **MIXED}, ODD),
    "efficient, window, odd": ({"window": 5}, {**EFFICIENT, **BF16}, ODD),
    "efficient, alibi, odd": ({"positions": "alibi"}, EFFICIENT, ODD),
    "math": ({}, {**MATH, **BF16}, {}),
    "math, alibi": ({"positions": "alibi"}, {**MATH, **MIXED}, {}),
    "math, packed": ({**GPT2, "n_kv_heads": 1}, MATH, {}),
    "recomputed": ({"n_kv_heads": 1}, {**RECOMPUTED, **SDPA, **MIXED}, {}),
    "recomputed in runs of 2 and 1": ({}, {"checkpointing": "sqrt", **MIXED}, {}),
    "selective": ({}, {**SELECTIVE, **FP32}, {}),
    "selective, sdpa": ({"bias": True}, {**SELECTIVE, **SDPA, **MIXED}, {}),
    "selective, math": ({}, {**SELECTIVE, **MATH, **BF16}, {}),
    "flash, fp32": ({}, FLASH, {}),
    "flash, mixed, grouped": ({"n_kv_heads": 1}, {**FLASH, **MIXED}, {}),
    "flash, window": ({"window": 5}, {**FLASH, **BF16}, {}),
    "flash, gpt2": (GPT2, {**FLASH, **BF16}, {}),
    "flash, forward": ({}, {**FLASH, **BF16}, FORWARD),
    "flash, prefill": ({"n_kv_heads": 1}, {**FLASH, **BF16}, PREFILL),
    "flash, recomputed": ({}, {**RECOMPUTED, **FLASH, **MIXED}, {}),
    "flash, selective": ({}, {**SELECTIVE, **FLASH, **BF16}, {}),
    "flash, fp8": ({}, {**FLASH, **FP8}, {}),
    "fused loss": ({}, {**FP32, "loss": "fused"}, {}),
    "fused loss, mixed": ({}, {**MIXED, "loss": "fused"}, {"workload": {"accumulate": 2}}),
    "fused loss, fp16, gpt2": (GPT2, {**FP16, "loss": "fused"}, {}),
    "chunked loss": ({}, {**FP32, "loss": "chunked"}, {}),
    "chunked loss, mixed": (
        {"tied_head": True},
        {**MIXED, "loss": "chunked"},
        {"workload": {"accumulate": 2}},
    ),
    "recomputed loss": ({}, {**BF16, "loss": "recomputed"}, {}),
    "recomputed loss, fp16": ({}, {**FP16, "loss": "recomputed"}, {}),
    "norm": ({}, {**BF16, "norm": "fused"}, {}),
    "norm, mixed": ({"norm": "layernorm"}, {**MIXED, "norm": "fused"}, {}),
    "norm, fp8": ({}, {**FP8, **SDPA, "norm": "fused"}, {}),
    "rope": ({}, {**FP32, "rope": "fused"}, {}),
    "rope, sdpa": ({}, {**SDPA, **BF16, "rope": "fused"}, {}),
    "rope, sdpa, grouped": ({"n_kv_heads": 1}, {**SDPA, **MIXED, "rope": "fused"}, {}),
    "rope, efficient": ({}, {**EFFICIENT, **MIXED, "rope": "fused"}, {}),
    "rope, math": ({}, {**MATH, **BF16, "rope": "fused"}, {}),
    "rope, flash, forward": ({}, {**FLASH, **BF16, "rope": "fused"}, FORWARD),
    "rope, decode": ({"n_kv_heads": 1}, {**SDPA, **BF16, "rope": "fused"}, DECODE),
    "rope, prefill": ({}, {**SDPA, **MIXED, "rope": "fused"}, PREFILL),
    "swiglu": ({}, {**MIXED, "swiglu": "fused"}, {}),
    "swiglu, experts": (ROUTED, {**BF16, "swiglu": "fused"}, {}),
    "own kernels throughout": ({}, {**BF16, **FLASH, **OWN, "loss": "recomputed"}, {}),
    "own kernels, selective": ({}, {**MIXED, **FLASH, **OWN, **SELECTIVE}, {}),
    "int8": ({}, {**BF16, **SDPA, "weights": "int8"}, FORWARD),
    "int8, mixed, prefill": ({"n_kv_heads": 1}, {**MIXED, "weights": "int8"}, PREFILL),
    "int8, decode": ({}, {**BF16, **SDPA, "weights": "int8"}, DECODE),
    "int8, gpt2, decode": (GPT2, {**MIXED, **SDPA, "weights": "int8"}, DECODE),
    "int4, fp32": (WHOLE_GROUPS, {**FP32, "weights": "int4:128"}, FORWARD),
    "int4, fp16, prefill": (WHOLE_GROUPS, {**FP16, **SDPA, "weights": "int4:128"}, PREFILL),
    "int4, decode": (WHOLE_GROUPS, {**BF16, **SDPA, "weights": "int4:128"}, DECODE),
    "int4, decode, own kernels": (
        WHOLE_GROUPS,
        {**BF16, **OWN, "attention": "flash-decode", "weights": "int4:128"},
        DECODE,
    ),
    "flash-decode": ({}, {**BF16, "attention": "flash-decode"}, DECODE),
    "flash-decode, grouped, window": (
        {"n_kv_heads": 1, "window": 5},
        {**MIXED, "attention": "flash-decode"},
        DECODE,
    ),
    "flash-hopper": ({}, {**HOPPER, **BF16}, {}),
    "flash-hopper, heads of 80": ({"head_dim": 80}, {**HOPPER, **BF16}, {}),
    "flash-hopper, mixed, grouped": ({"n_kv_heads": 1}, {**HOPPER, **MIXED}, {}),
    "experts, in a loop": (EXPERTS, FP32, {}),
    "experts, in a loop, forward": (EXPERTS, {"precision": "tf32"}, FORWARD),
    "experts, in a loop, fp16": (EXPERTS, {**FP16, **SDPA}, {}),
    "experts, in a loop, bf16": ({**EXPERTS, "d_ff": 36}, BF16, {}),
    "experts, in a loop, mixed": ({**EXPERTS, "d_ff": 36}, {**MIXED, **RECOMPUTED}, {}),
    "experts, in a loop, selective": (EXPERTS, {**FP16, **SELECTIVE, **SDPA}, {}),
    "experts": (ROUTED, {**BF16, **SDPA}, {"workload": {"accumulate": 2}}),
    "experts, forward": (ROUTED, MIXED, FORWARD),
    "experts, mixed": (ROUTED, {**MIXED, **SDPA}, {}),
    "experts, one active": ({**ROUTED, "n_active_experts": 1}, {**MIXED, **SDPA}, {}),
    "experts, not gated": ({**ROUTED, "gated": False, "activation": "relu"}, BF16, {}),
    "experts, recomputed": (ROUTED, {**MIXED, **RECOMPUTED}, {}),
    "experts, selective": (ROUTED, {**MIXED, **SELECTIVE, **SDPA}, {}),
    "experts, fused": (ROUTED, {**BF16, "optimizer": "adamw-fused"}, {}),
    "fp8": ({}, {**FP8, **SDPA}, {}),
    "fp8, forward": ({"bias": True}, FP8, FORWARD),
    "fp8, biases": ({"bias": True, "qkv_bias": True}, FP8, {}),
    "fp8, recomputed": ({"bias": True}, {**FP8, **RECOMPUTED}, {}),
    "fp8, selective": ({}, {**FP8, **SELECTIVE, **SDPA}, {}),
    "prefill": ({}, FP32, PREFILL),
    "prefill, sdpa": ({"n_kv_heads": 1}, {**BF16, **SDPA}, PREFILL),
    "prefill, gpt2": (GPT2, {**MIXED, **SDPA}, PREFILL),
    "prefill, window": ({"window": 5}, {**SDPA, **MIXED}, PREFILL),
    "decode": ({}, FP32, DECODE),
    "decode, bf16": ({"n_kv_heads": 1}, BF16, DECODE),
    "decode, mixed": ({}, MIXED, DECODE),
    "decode, fp16": ({}, FP16, DECODE),
    "decode, gpt2": (GPT2, {**MIXED, **SDPA}, DECODE),
    "decode, alibi": ({"positions": "alibi", "window": 5}, MIXED, DECODE),
    "decode, sdpa, fp32": ({}, SDPA, DECODE),
    "decode, sdpa, grouped, fp32": ({"n_kv_heads": 1}, SDPA, DECODE),
    "decode, sdpa": ({}, {**BF16, **SDPA}, DECODE),
    "decode, sdpa, one sequence": (
        {},
        {**BF16, **SDPA},
        {"pass_": "decode", "workload": {"batch_size": 1}},
    ),
    "decode, sdpa, grouped, window": ({"n_kv_heads": 1, "window": 5}, {**BF16, **SDPA}, DECODE),
    "decode, sdpa, window of one": ({"window": 1}, {**BF16, **SDPA}, DECODE),
    "decode, sdpa, alibi": ({"positions": "alibi"}, {**MIXED, **SDPA}, DECODE),
    "decode, padded heads": ({"head_dim": 12}, {**SDPA, **BF16}, DECODE),
    "decode, flash": ({"n_kv_heads": 1}, {**BF16, "attention": "sdpa-flash"}, DECODE),
    "decode, efficient": ({}, {**EFFICIENT, **BF16}, DECODE),
    "decode, efficient, alibi, odd": ({"positions": "alibi"}, EFFICIENT, {**DECODE, **ODD}),
    "decode, math": ({"n_kv_heads": 1}, {**MATH, **BF16}, DECODE),
    "decode, fp8": ({}, {**FP8, **SDPA}, {"pass_": "decode", "workload": {"batch_size": 16}}),
}


def of_any_torch(operator):
    """torch 2.11 makes the zeros of topk's gradient from a shape, 2.13 from a tensor."""
    if operator.name not in ("aten.zeros", "aten.new_zeros"):
        return operator
    return msgspec.structs.replace(operator, name="aten.zeros", inputs=())


@pytest.mark.parametrize("setting", GRID.values(), ids=GRID.keys())
def test_over_the_settings(setting, make_case, stated):
    """Each operator with its count; only their order may differ."""
    changes, configuration, options = setting
    capability = torch.cuda.get_device_capability()
    if configuration.get("precision") == "fp8" and capability < (8, 9):
        pytest.skip("no fp8 products before compute capability 8.9")
    if configuration.get("attention") == "flash-hopper" and capability != (9, 0):
        pytest.skip("the kernel is for compute capability 9.0 alone")
    if changes.get("n_active_experts") in (1, 2) and capability[0] not in (9, 10):
        pytest.skip("without the kernel of compute capability 9 and 10 shapes are in the values")
    case = make_case(shape=changes, **options, **configuration)
    closed, captured = (
        set(map(of_any_torch, graph.operators)) for graph in (stated(case), capture(case))
    )
    assert captured - closed == set()
    # A capture has what makes or changes a tensor: no read by the host.
    assert {each for each in closed - captured if each.name != READ_BY_HOST} == set()


REFUSED = {
    "cudnn, fp32": ({}, {"attention": "sdpa-cudnn"}),
    "cudnn, padded heads": ({"head_dim": 12}, {"attention": "sdpa-cudnn", **BF16}),
    "flash, fp32": ({}, {"attention": "sdpa-flash"}),
    "flash, window": ({"window": 5}, {"attention": "sdpa-flash", **BF16}),
    "flash, alibi": ({"positions": "alibi"}, {"attention": "sdpa-flash", **BF16}),
    "efficient, grouped": ({"n_kv_heads": 1}, {**EFFICIENT, **BF16}),
    "efficient, heads of no kernel": ({"head_dim": 6}, EFFICIENT),
}


@pytest.mark.parametrize("setting", REFUSED.values(), ids=REFUSED.keys())
def test_what_torch_refuses_is_refused(setting, make_case, stated):
    changes, configuration = setting
    case = make_case(shape=changes, **configuration)
    with pytest.raises(RuntimeError, match="No available kernel"):
        capture(case)
    with pytest.raises(PeakwardError, match=r"expected inputs that torch's .* attention takes"):
        stated(case)
