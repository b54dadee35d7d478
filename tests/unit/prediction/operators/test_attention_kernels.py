"""Peakward's own attention in closed form against the step itself, seen with fake tensors.

These launch nothing, so that the step can be followed where there is no GPU; decode steps are run, in
Triton's interpreter. A CPU's norms are other
operators than a GPU's: compared is all that attention does. The whole step is `tests/gpu`'s.
"""

import msgspec
import pytest

from peakward.kernels.ops.cache_write import api as cache_write
from peakward.lab.levers.capture import capture
from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from tiers import in_full

SHAPE = msgspec.structs.replace(
    model("tiny"),
    n_layers=3,
    d_model=64,
    d_ff=32,
    n_heads=4,
    n_kv_heads=4,
    head_dim=64,
    vocab_size=40,
)
BF16, MIXED = {"precision": "bf16"}, {"precision": "bf16-mixed"}
HOPPER, DECODES = {"attention": "flash-hopper"}, {"attention": "flash-decode"}
GPT2 = {"positions": "learned", "norm": "layernorm", "gated": False, "activation": "gelu-tanh"}
GRID = {
    "train step": ({}, {}, {}),
    "mixed, grouped": ({"n_kv_heads": 2}, MIXED, {"accumulate": 2}),
    "heads that are no power of two": ({"head_dim": 80}, BF16, {}),
    "packed": (GPT2, BF16, {}),
    "window": ({"window": 5}, MIXED, {}),
    "forward": ({}, BF16, {"pass_": "forward"}),
    "prefill": ({"n_kv_heads": 1}, MIXED, {"pass_": "prefill"}),
    "one sequence": ({}, BF16, {"batch_size": 1}),
    "hopper": ({}, {**HOPPER, **BF16}, {}),
    "hopper, heads of 80": ({"head_dim": 80}, {**HOPPER, **BF16}, {}),
    "hopper, mixed, grouped": ({"n_kv_heads": 1, "head_dim": 128}, {**HOPPER, **MIXED}, {}),
    "recomputed": ({}, {**MIXED, "checkpointing": "every-block"}, {}),
    "recomputed in runs of 2 and 1": ({}, {"checkpointing": "sqrt"}, {}),
    "selective": ({}, {**BF16, "checkpointing": "selective"}, {}),
    "decode": ({}, DECODES, {"pass_": "decode"}),
    "decode, mixed, grouped": ({"n_kv_heads": 1}, {**DECODES, **MIXED}, {"pass_": "decode"}),
    "decode, window, packed": ({"window": 5, **GPT2}, DECODES, {"pass_": "decode"}),
    "decode from int8, grouped": (
        {"n_kv_heads": 2},
        {**DECODES, **BF16, "kv_cache": "int8"},
        {"pass_": "decode"},
    ),
    "decode from fp8, window": (
        {"window": 5},
        {**DECODES, **MIXED, "kv_cache": "fp8"},
        {"pass_": "decode"},
    ),
    "experts": ({"n_experts": 4, "n_active_experts": 2}, BF16, {}),
}


def case(device, shape, configuration, workload):
    return ModelCase(
        model=msgspec.structs.replace(SHAPE, **shape),
        workload=Workload(**{"batch_size": 2, "seq_len": 14, **workload}),
        configuration=Configuration(**{"attention": "flash", **configuration}),
        device=device,
    )


def of_attention(graph):
    return {
        each
        for each in graph.operators
        if (each.module or "").endswith(".attention") or each.name.startswith("peakward.")
    }


QUICK = (
    "mixed, grouped",
    "window",
    "hopper, heads of 80",
    "recomputed in runs of 2 and 1",
    "decode",
    "decode from int8, grouped",
)


@pytest.mark.parametrize("name", [*QUICK, *in_full(name for name in GRID if name not in QUICK)])
def test_it_is_what_a_step_shows(name, monkeypatch):
    monkeypatch.setattr(cache_write, "takes", lambda _k, _stored: True)
    setting = GRID[name]
    closed = of_attention(op_graph(case("cuda", *setting)))
    captured = of_attention(capture(case("cpu", *setting)))
    assert (closed - captured, captured - closed) == (set(), set())
    assert any(each.name.startswith("peakward.") for each in captured)


def test_by_hand():
    made = case("cuda", {"n_kv_heads": 2}, BF16, {})
    found = {each.name: each for each in op_graph(made).operators}
    q, k, log_sums = 2 * 4 * 14 * 64 * 2, 2 * 2 * 14 * 64 * 2, 2 * 4 * 14 * 4
    product = 2 * 2 * 4 * 14 * 14 * 64
    forward, backward = (found[f"peakward.flash_attention{each}"] for each in ("", "_backward"))
    assert (forward.count, forward.flops, backward.flops) == (3, 2 * product, 5 * product)
    assert (forward.bytes_read, forward.bytes_written) == (q + 2 * k, q + log_sums)
    assert (backward.bytes_read, backward.bytes_written) == (3 * q + 2 * k + log_sums, q + 2 * k)


@pytest.mark.parametrize(
    ("configuration", "pass_", "says"),
    [
        ({"attention": "sdpa"}, "decode", "attention to a cache in bytes flash-decode"),
        ({"attention": "flash"}, "prefill", "pass of a cache in bytes decode"),
    ],
)
def test_a_cache_in_bytes_is_read_by_its_kernel_alone(configuration, pass_, says):
    with pytest.raises(PeakwardError, match=f"expected {says}"):
        op_graph(case("cuda", {}, {**configuration, "kv_cache": "int8"}, {"pass_": pass_}))


def test_selective_checkpointing_keeps_it():
    calls = {
        mode: {
            each.phase: each.count
            for each in op_graph(case("cuda", {}, {**BF16, "checkpointing": mode}, {})).operators
            if each.name == "peakward.flash_attention"
        }
        for mode in ("every-block", "selective")
    }
    assert calls == {"every-block": {"forward": 3, "backward": 3}, "selective": {"forward": 3}}


@pytest.mark.parametrize(
    ("device", "shape", "configuration", "says"),
    [
        ("cpu", {}, {}, "expected attention naive or sdpa or sdpa-flash .*, got flash"),
        (
            "cuda",
            {"positions": "alibi"},
            {},
            "attention flash needs positions",
        ),
        ("cuda", {"head_dim": 72}, {**HOPPER, **BF16}, "attention flash-hopper needs a head_dim"),
        ("cuda", {}, HOPPER, "attention flash-hopper needs the precision"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused(device, shape, configuration, says):
    with pytest.raises(PeakwardError, match=says):
        op_graph(case(device, shape, configuration, {}))


def test_another_gpu_than_hopper_is_refused_to_the_kernel_for_it():
    made = case("cuda", {}, {**HOPPER, **BF16}, {})
    with pytest.raises(PeakwardError, match=r"compute capability 9\.0, got 10\.0"):
        op_graph(made, compute_capability=(10, 0))


@pytest.mark.parametrize("attention", ["flash", "flash-hopper"])
def test_compiled_blocks_call_it_too(attention):
    made = case("cuda", {}, {**BF16, "attention": attention, "compile": "default"}, {})
    calls = {
        (each.name, each.phase): each.count
        for each in op_graph(made).operators
        if each.name.startswith("peakward.")
    }
    assert calls == {
        ("peakward.flash_attention", "forward"): 3,
        ("peakward.flash_attention_backward", "backward"): 3,
    }
