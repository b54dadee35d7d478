"""The prediction by itself: cases reckoned by hand, and what must hold of all."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.models.presets import model
from peakward.prediction.memory.peak import CONTEXT_BYTES, lifetimes_of, peak_memory, resident_bytes
from peakward.prediction.memory.replay import most_held
from peakward.prediction.memory.step import timeline
from peakward.prediction.parameters import n_parameters
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.memory import MemorySplit
from peakward.records.model_shape import ModelShape
from peakward.records.plan import DeviceGroup

MIB = 2**20
SHAPE = ModelShape(
    name="drawn",
    vocab_size=4000,
    n_layers=3,
    d_model=64,
    d_ff=96,
    n_heads=2,
    n_kv_heads=2,
    head_dim=32,
    max_seq_len=512,
)
BATCH, SEQ = 2, 64
TOKENS = BATCH * SEQ
N = TOKENS * SHAPE.d_model
FF = TOKENS * SHAPE.d_ff
SQUARE = BATCH * SHAPE.n_heads * SEQ**2
ANGLES = 2 * SEQ * SHAPE.head_dim // 2
"""Elements of the residual stream, of a feed-forward layer, of all scores, of cosines and sines."""


def case(configuration=None, shape=SHAPE, **workload):
    return ModelCase(
        model=shape,
        workload=Workload(**{"batch_size": BATCH, "seq_len": SEQ, **workload}),
        configuration=Configuration(**(configuration or {})),
        device="cuda",
    )


def split(made):
    return peak_memory(made).peak


def test_fp32_at_the_loss_by_hand():
    found = peak_memory(case(pass_="forward_backward"))
    # Of a block: both norms' inputs and results, q, k, v, attention's result, gate and up, the
    # activation and its product, the softmax, the mask, two figures a position.
    block = 4 * (8 * N + 4 * FF + SQUARE) + SEQ**2 + 2 * 4 * TOKENS
    readout = 4 * (2 * N + TOKENS)
    assert found.phase == "backward"
    assert found.peak == MemorySplit(
        parameters_bytes=4 * n_parameters(SHAPE),
        activations_bytes=3 * block + readout + 4 * ANGLES,
        logits_bytes=3 * 4 * TOKENS * SHAPE.vocab_size,
        inputs_bytes=8 * 2 * 8 * TOKENS,
        workspace_bytes=64 * MIB,
        rounding_bytes=found.peak.rounding_bytes,
    )


def test_fused_attention_and_autocast_at_the_loss_by_hand():
    found = split(case({"precision": "bf16-mixed", "attention": "sdpa"}, pass_="forward_backward"))
    # The norms' inputs in fp32, their results in bf16; q, k and all that was projected; attention's
    # result twice, its log-sum-exp.
    block = (4 * 2 + 2 * (2 + 2 + 3 + 2)) * N + 2 * 4 * FF + 4 * TOKENS * SHAPE.n_heads
    readout = (4 + 2) * N
    figures = (3 * 2 + 1) * 4 * TOKENS
    assert found.activations_bytes == 3 * block + readout + figures + 4 * ANGLES
    linear = n_parameters(SHAPE) - SHAPE.vocab_size * SHAPE.d_model - 7 * SHAPE.d_model
    assert found.weight_casts_bytes == 2 * linear
    assert found.logits_bytes == 3 * 4 * TOKENS * SHAPE.vocab_size


@pytest.mark.parametrize(
    ("optimizer", "temporaries"),
    [
        ("adamw-foreach", 4 * n_parameters(model("small"))),
        ("adamw-loop", 2 * 4 * 10_000 * 768),
        ("adamw-fused", 0),
        ("adamw-triton", 0),
    ],
)
def test_the_optimisers_temporaries(optimizer, temporaries):
    made = case(
        {"optimizer": optimizer, "checkpointing": "every-block"},
        model("small"),
        batch_size=1,
        seq_len=16,
    )
    found = peak_memory(made)
    parameters = 4 * n_parameters(model("small"))
    at_update = MemorySplit(
        parameters_bytes=parameters,
        gradients_bytes=parameters,
        optimizer_state_bytes=2 * parameters,
        temporaries_bytes=temporaries,
        inputs_bytes=8 * 2 * 8 * 16,
        workspace_bytes=64 * MIB,
        rounding_bytes=found.peak.rounding_bytes,
    )
    if temporaries:
        assert (found.phase, found.peak) == ("optimizer", at_update)
    else:
        # The last gradient is made beside what it is made from.
        assert found.peak.total_bytes == pytest.approx(at_update.total_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("optimizer", "a_parameter"),
    [("adamw-bf16-states", 2 * 2), ("adamw-8bit-states", 2 * (1 + 1 / 256))],
)
def test_moments_in_fewer_bits(optimizer, a_parameter):
    settings = {"optimizer": optimizer, "checkpointing": "every-block", "precision": "bf16-mixed"}
    made = case(settings, model("small"), batch_size=1, seq_len=16)
    found = peak_memory(made).peak
    assert found.optimizer_state_bytes == a_parameter * n_parameters(model("small"))
    whole = resident_bytes(made, None)
    assert whole == (2 * 4 + a_parameter) * n_parameters(model("small"))


def test_building_needs_an_fp32_copy_of_the_largest_matrix():
    found = peak_memory(case({"precision": "bf16"}, model("2.7B"), batch_size=1, pass_="forward"))
    largest = 4 * 2 * 10_240 * 2560
    assert (found.phase, found.peak.temporaries_bytes) == ("build", largest)
    assert found.peak.parameters_bytes == 2 * n_parameters(model("2.7B"))


def test_a_mixtures_experts_are_all_held_and_trained():
    mixture = msgspec.structs.replace(SHAPE, n_experts=4, n_active_experts=1)
    found = peak_memory(case({"optimizer": "adamw-fused"}, mixture))
    held = 4 * n_parameters(mixture)
    assert found.peak.parameters_bytes == held
    assert found.peak.optimizer_state_bytes == 2 * held
    at_end = peak_memory(case({"optimizer": "adamw-foreach"}, mixture, batch_size=1)).peak
    assert (at_end.gradients_bytes, at_end.temporaries_bytes) == (held, held)


def test_of_a_mixture_activations_grow_with_the_experts_that_are_active():
    def activations(n_experts, n_active):
        mixture = msgspec.structs.replace(
            SHAPE, n_experts=n_experts, n_active_experts=n_active, vocab_size=8
        )
        made = case({"precision": "bf16"}, mixture, pass_="forward_backward", seq_len=256)
        return split(made).activations_bytes

    one, two, three = (activations(8, n) for n in (1, 2, 3))
    assert three - two == two - one > 0
    assert activations(16, 1) - one < (two - one) / 4


def test_accumulation_holds_gradients_beside_activations():
    one, two, three = (split(case(accumulate=n)) for n in (1, 2, 3))
    assert one.gradients_bytes == 0
    assert two.gradients_bytes == 4 * n_parameters(SHAPE)
    assert three.inputs_bytes - two.inputs_bytes == two.inputs_bytes - one.inputs_bytes
    same = {"inputs_bytes": 0, "rounding_bytes": 0}
    assert msgspec.structs.replace(two, **same) == msgspec.structs.replace(three, **same)


def test_each_layer_adds_the_same_parameters_and_activations():
    two, three, four = (
        split(case(shape=msgspec.structs.replace(SHAPE, n_layers=n))) for n in (2, 3, 4)
    )
    for field in ("parameters_bytes", "optimizer_state_bytes", "activations_bytes"):
        a, b, c = (getattr(each, field) for each in (two, three, four))
        assert b - a == c - b > 0


LONG = msgspec.structs.replace(SHAPE, n_layers=16)


def test_what_is_recomputed_is_not_held():
    peaks = [
        split(case({"attention": "sdpa", "precision": "bf16", "checkpointing": mode}, LONG))
        for mode in ("none", "selective", "every-block")
    ]
    activations = [each.activations_bytes for each in peaks]
    assert activations == sorted(activations, reverse=True)
    assert len(set(activations)) == 3


def test_choices_of_architecture_change_what_they_must():
    settings = {"attention": "sdpa", "precision": "bf16"}
    shape = msgspec.structs.replace(SHAPE, n_heads=4, n_kv_heads=4)
    grouped, tied, windowed = (
        split(case(settings, msgspec.structs.replace(shape, **changes)))
        for changes in ({"n_kv_heads": 1}, {"tied_head": True}, {"window": 8})
    )
    before = split(case(settings, shape))
    # Keys as they were projected and as they were turned, and values, of three heads less a layer.
    assert before.activations_bytes - grouped.activations_bytes == 3 * 3 * (TOKENS * 3 * 32 * 2)
    assert before.parameters_bytes - tied.parameters_bytes == 2 * 4000 * 64
    assert windowed.activations_bytes - before.activations_bytes == 3 * 2 * SEQ**2


def test_a_captured_step_has_the_workspaces_of_its_rehearsals_too():
    """At the loss one more than an eager step: its own backward pass has multiplied nothing yet."""
    work = {"batch_size": 64, "seq_len": 256, "pass_": "forward_backward"}
    eager, captured = (split(case({"cuda_graphs": graphs}, **work)) for graphs in (False, True))
    assert captured.workspace_bytes - eager.workspace_bytes == 32 * MIB
    assert captured.inputs_bytes == eager.inputs_bytes * 9 // 8


def test_what_is_not_computed_is_none():
    eager, blocks, compiled, captured = (
        peak_memory(case(each))
        for each in (
            {},
            {"compile": "default"},
            {"compile": "reduce-overhead"},
            {"cuda_graphs": True},
        )
    )
    assert eager.device_bytes == eager.reserved_bytes + CONTEXT_BYTES
    assert blocks.device_bytes == blocks.reserved_bytes + CONTEXT_BYTES
    assert (compiled.reserved_bytes, compiled.device_bytes) == (None, None)
    assert captured.reserved_bytes is None
    assert [each.basis for each in (eager, blocks, compiled, captured)] == [
        "step",
        "step",
        "eager step",
        "step",
    ]


def test_of_varying_lengths_the_longest_counts():
    lengths = {"varying_seq_lens": (16, 48, 32)}
    unpadded, padded = (
        split(case(**lengths, padding=padding)) for padding in ("none", "to-seq-len")
    )
    assert unpadded.activations_bytes == split(case(seq_len=48)).activations_bytes
    assert padded.activations_bytes == split(case()).activations_bytes
    # Two cycles make six steps.
    assert unpadded.inputs_bytes == 2 * 2 * 8 * BATCH * (16 + 48 + 32)


@st.composite
def cases(draw: st.DrawFn) -> ModelCase:
    n_kv_heads = draw(st.integers(1, 3))
    shape = ModelShape(
        name="drawn",
        vocab_size=draw(st.integers(1, 5000)),
        n_layers=draw(st.integers(1, 4)),
        d_model=draw(st.integers(2, 300)),
        d_ff=draw(st.integers(1, 600)),
        n_heads=n_kv_heads * draw(st.integers(1, 3)),
        n_kv_heads=n_kv_heads,
        head_dim=2 * draw(st.integers(2, 40)),
        max_seq_len=512,
        norm=draw(st.sampled_from(["rmsnorm", "layernorm"])),
        activation=draw(st.sampled_from(["silu", "gelu", "relu"])),
        gated=draw(st.booleans()),
        positions=draw(st.sampled_from(["rope", "learned", "sinusoidal", "alibi"])),
        window=draw(st.none() | st.integers(1, 300)),
        tied_head=draw(st.booleans()),
        bias=draw(st.booleans()),
        qkv_bias=draw(st.booleans()),
    )
    settings_ = {
        "precision": draw(st.sampled_from(["fp32", "bf16", "bf16-mixed", "fp16-mixed"])),
        "optimizer": draw(st.sampled_from(["adamw-foreach", "adamw-loop", "adamw-fused"])),
        "checkpointing": draw(st.sampled_from(["none", "sqrt", "every-block", "selective"])),
    }
    return case(
        settings_,
        shape,
        batch_size=draw(st.integers(2, 6)),
        seq_len=draw(st.integers(2, 200)),
        accumulate=draw(st.integers(1, 3)),
        pass_=draw(st.sampled_from(["forward", "forward_backward", "train_step"])),
    )


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_larger_batch_holds_as_much_or_more(made):
    larger = msgspec.structs.replace(
        made,
        workload=msgspec.structs.replace(made.workload, batch_size=made.workload.batch_size + 1),
    )
    before, after = peak_memory(made), peak_memory(larger)

    def asked(each):
        return each.peak.total_bytes - each.peak.rounding_bytes

    # A free block found instead of a fresh one decides about up to 1 MiB each.
    assert asked(after) >= asked(before) - before.peak.rounding_bytes
    for each in (before, after):
        assert each.peak_bytes == each.peak.total_bytes <= each.reserved_bytes
        assert min(msgspec.structs.astuple(each.peak)) >= 0


def test_the_gradient_of_fp16_scores_needs_no_copy_in_fp32():
    """CUDA's softmax of fp16 gives fp32, and its backward kernel fp16 (`_softmax_backward_data`); of bf16
    both sides are casts. Left in fp32 are the gradient of the weights and the kernel's own product."""
    shape = msgspec.structs.replace(SHAPE, n_layers=1)
    scores_bytes = BATCH * shape.n_heads * SEQ**2 * 4
    n_made = {}
    for precision in ("bf16-mixed", "fp16-mixed"):
        made = case({"precision": precision}, shape, pass_="forward_backward")
        step = timeline(made).lifetimes()
        n_made[precision] = sum(
            each.n_bytes == scores_bytes and step.phases[each.made] == "backward"
            for each in step.tensors()
        )
    assert n_made == {"bf16-mixed": 2 * 3, "fp16-mixed": 2 * 2}, "in two steps"


ASKED = (
    case(),
    case(pass_="forward"),
    case(pass_="forward_backward", accumulate=3),
    case({"precision": "bf16", "optimizer": "adamw-fused"}),
    case({"cuda_graphs": True}, shape=msgspec.structs.replace(SHAPE, tied_head=True)),
)


@pytest.mark.parametrize("asked", ASKED, ids=lambda each: each.workload.pass_)
def test_what_stays_is_what_is_there_at_the_end(asked):
    found = lifetimes_of(asked, None)
    stays = [
        each.n_bytes
        for each in found.tensors()
        if each.last == len(found.phases) - 1
        and each.category in ("parameters", "gradients", "optimizer_state")
    ]
    assert resident_bytes(asked, None) == sum(stays)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("asked", ASKED, ids=lambda each: each.workload.pass_)
def test_no_gpu_of_a_group_holds_less_than_what_stays(asked, parallel):
    group = DeviceGroup(n_gpus=8, parallel=parallel)
    assert 0 < resident_bytes(asked, group) <= most_held(lifetimes_of(asked, group))


def test_what_quantised_weights_hold_is_left_to_their_timeline():
    assert resident_bytes(case({"weights": "int8"}, pass_="forward"), None) == 0
