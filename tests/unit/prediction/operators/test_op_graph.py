"""The closed form by itself: what it costs to make, and what its sums must be."""

import msgspec
import pytest

from peakward.models.presets import MODELS, model
from peakward.prediction.flops import attended_pairs, phase_flops
from peakward.prediction.operators import tape
from peakward.prediction.operators.op_graph import category, op_graph
from peakward.prediction.parameters import n_parameters
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.op_graph import READ_BY_HOST, Operator
from peakward.traces.row_categories import operator_category


def case(shape, configuration=None, **workload):
    return ModelCase(
        model=shape,
        workload=Workload(**{"batch_size": 2, "seq_len": 96, **workload}),
        configuration=Configuration(**(configuration or {})),
        device="cpu",
    )


def layers(n):
    return msgspec.structs.replace(model("llama-3-8b"), n_layers=n)


@pytest.fixture
def n_made(monkeypatch):
    """How many operators the tape has made."""
    made = []

    def counting(**fields):
        made.append(None)
        return Operator(**fields)

    monkeypatch.setattr(tape, "Operator", counting)
    return lambda: len(made)


def test_a_large_model_takes_no_more_objects_than_one_block_of_it(n_made):
    settings = {"precision": "bf16-mixed", "checkpointing": "every-block"}
    op_graph(case(layers(1), settings, accumulate=1))
    one_block = n_made()
    graph = op_graph(case(layers(32), settings, accumulate=1))
    assert n_made() == 2 * one_block < 2 * 400
    assert len(graph.operators) < 250


def test_each_layer_adds_the_same():
    two, three, four = (
        op_graph(case(layers(n))).totals(lambda each: each.phase) for n in (2, 3, 4)
    )
    for phase in ("forward", "backward"):
        added = [b - a for a, b in zip(two[phase], three[phase], strict=True)]
        assert added == [b - a for a, b in zip(three[phase], four[phase], strict=True)]
        assert min(added) > 0


@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: shape.name)
def test_flops_are_the_models_and_those_that_the_mask_throws_away(shape):
    made = case(shape, accumulate=3)
    pairs = 96**2 - attended_pairs(96, window=shape.window)
    masked = 3 * 4.0 * 2 * shape.n_layers * shape.n_heads * shape.head_dim * pairs
    needed = phase_flops(made)
    assert {
        phase: each.flops for phase, each in op_graph(made).totals(lambda each: each.phase).items()
    } == {
        "forward": needed["forward"] + masked,
        "backward": needed["backward"] + 2 * masked,
        "optimizer": 0,
    }


@pytest.mark.parametrize("shape", MODELS, ids=lambda shape: shape.name)
@pytest.mark.parametrize(
    ("optimizer", "reads", "writes"),
    [("adamw-fused", 4, 3), ("adamw-foreach", 1 + 2 + 1 + 2 + 1 + 1 + 1 + 3, 8)],
)
def test_an_update_moves_every_parameter_as_often_as_it_must(optimizer, reads, writes, shape):
    graph = op_graph(case(shape, {"optimizer": optimizer}))
    update = [
        each for each in graph.operators if each.phase == "optimizer" and each.outputs[0].shape
    ]
    n_bytes = 4 * n_parameters(shape)
    steps = sum(x.n_bytes for each in update for x in each.inputs if not x.shape)
    assert sum(each.count * each.bytes_read for each in update) == reads * n_bytes + steps
    assert sum(each.count * each.bytes_written for each in update) == writes * n_bytes


def test_a_micro_batch_more_adds_its_passes_and_sums_of_gradients():
    shape = model("tiny")
    one, two = (op_graph(case(shape, accumulate=n)) for n in (1, 2))
    added = {
        phase: [b - a for a, b in zip(each, two.totals(lambda x: x.phase)[phase], strict=True)]
        for phase, each in one.totals(lambda each: each.phase).items()
    }
    first = one.totals(lambda each: each.phase)
    assert added["forward"] == list(first["forward"])
    assert added["optimizer"] == [0, 0, 0, 0]
    gradients = 4 * n_parameters(shape)
    assert added["backward"][2] == first["backward"].bytes_read + 2 * gradients + 2 * 4
    assert added["backward"][3] == first["backward"].bytes_written + gradients + 4


ARCHITECTURES = [
    {},
    {"norm": "layernorm", "positions": "learned", "gated": False, "activation": "gelu"},
    {"positions": "alibi", "activation": "relu", "window": 4, "qkv_bias": True},
    {"positions": "sinusoidal", "bias": True},
    {"n_experts": 4, "n_active_experts": 2},
]


def assert_same_categories(made):
    # A read by the host computes nothing: a trace counts it to the framework, which no prediction tells.
    names = {each.name for each in op_graph(made).operators} - {READ_BY_HOST}
    in_a_trace = {name: operator_category(name.replace(".", "::")) for name in names}
    assert {name: category(name) for name in names} == in_a_trace


@pytest.mark.parametrize("changes", ARCHITECTURES)
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("optimizer", ["adamw-loop", "adamw-foreach", "adamw-fused"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_categories_are_those_of_a_trace(device, optimizer, attention, changes):
    shape = msgspec.structs.replace(model("tiny"), **changes)
    settings = {"precision": "bf16", "attention": attention, "optimizer": optimizer}
    assert_same_categories(msgspec.structs.replace(case(shape, settings), device=device))


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, {"precision": "fp16-mixed"}),
        ({}, {"precision": "fp16-mixed", "optimizer": "adamw-fused"}),
        ({}, {"precision": "fp8"}),
        ({}, {"attention": "sdpa-math", "precision": "bf16"}),
        ({"window": 4}, {"attention": "sdpa-efficient"}),
        ({"head_dim": 12}, {"attention": "sdpa-flash", "precision": "bf16"}),
    ],
)
def test_categories_are_those_of_a_trace_in_what_cuda_alone_has(changes, settings):
    shape = msgspec.structs.replace(model("tiny"), **changes)
    assert_same_categories(msgspec.structs.replace(case(shape, settings), device="cuda"))


def on_cuda(attention, **workload):
    shape = msgspec.structs.replace(model("llama-3-8b"), n_layers=2)
    made = case(shape, {"precision": "bf16-mixed", "attention": attention}, **workload)
    return msgspec.structs.replace(made, device="cuda")


@pytest.mark.parametrize("attention", ["naive", "sdpa-math"])
def test_a_fused_backward_repeats_the_scores_and_a_forward_repeats_nothing(attention):
    fused = op_graph(on_cuda("sdpa")).totals(lambda each: each.phase)
    written_out = op_graph(on_cuda(attention)).totals(lambda each: each.phase)
    scores = 2 * 2 * 2 * 32 * 96**2 * 128
    assert fused["forward"].flops == written_out["forward"].flops
    assert fused["backward"].flops == written_out["backward"].flops + scores


def test_a_gpu_without_cudnn_in_front_differs_in_the_kernels_alone():
    hopper, ampere = (
        op_graph(on_cuda("sdpa"), compute_capability=each) for each in ((9, 0), (8, 0))
    )
    only = {each.name for each in set(hopper.operators) ^ set(ampere.operators)}
    assert only == {
        f"aten._scaled_dot_product_{kernel}_attention{direction}"
        for kernel in ("cudnn", "flash")
        for direction in ("", "_backward")
    }


def test_selective_checkpointing_recomputes_no_product():
    graphs = (
        op_graph(msgspec.structs.replace(on_cuda("sdpa"), configuration=Configuration(**settings)))
        for settings in (
            {"precision": "bf16-mixed", "attention": "sdpa", "checkpointing": each}
            for each in ("none", "selective", "every-block")
        )
    )
    none, selective, every = (each.totals(lambda each: each.phase)["backward"] for each in graphs)
    assert none.flops == selective.flops < every.flops
    assert none.n_calls < selective.n_calls < every.n_calls


@pytest.mark.parametrize(
    ("optimizer", "n_reads"), [("adamw-foreach", 1), ("adamw-triton", 1), ("adamw-fused", 0)]
)
def test_the_host_reads_whether_a_scaled_gradient_is_infinite_unless_the_optimizer_does(
    optimizer, n_reads
):
    settings = {"precision": "fp16-mixed", "optimizer": optimizer}
    graph = op_graph(msgspec.structs.replace(case(model("tiny"), settings), device="cuda"))
    reads = [each for each in graph.operators if each.name == READ_BY_HOST]
    assert [(each.phase, each.count) for each in reads] == [("optimizer", 1)] * n_reads
