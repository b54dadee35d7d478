"""What decides a step's time and is in no operator's record."""

import msgspec
import pytest
import torch

from peakward.lab.models.module_capture import capture_module
from peakward.models.presets import model
from peakward.prediction.time.setting import of_case, of_module, scattered_share

from .round_device import case, operator, tensor


def test_a_case_s_is_by_the_decoder_s_code():
    found = of_case(case("small", batch_size=4, seq_len=128, precision="tf32", attention="sdpa"))
    assert (found.n_rows, found.tf32, found.heads_are_scattered) == ({512}, True, True)
    assert found.counts_steps_on_host
    halves = operator("silu", [tensor(4, 8)], [tensor(4, 8)], module="blocks.*.ff")
    assert found.scattered_share(halves) == 1.0


def test_rows_of_a_mixture_are_also_what_each_expert_gets():
    mixture = msgspec.structs.replace(model("small"), n_experts=6, n_active_experts=2)
    found = of_case(case(mixture, batch_size=4, seq_len=128))
    assert found.n_rows == {512, 170, 171}


@pytest.mark.parametrize(("pass_", "n_rows"), [("prefill", 512), ("decode", 4)])
def test_a_decode_step_has_one_token_of_each_sequence(pass_, n_rows):
    assert of_case(case(pass_=pass_)).n_rows == {n_rows}


@pytest.mark.parametrize("settings", [{"optimizer": "adamw-fused"}, {"cuda_graphs": True}])
def test_a_kernel_or_a_graph_needs_step_counts_on_the_device(settings):
    assert not of_case(case("small", **settings)).counts_steps_on_host


def test_a_module_s_is_as_it_was_seen():
    class Halves(torch.nn.Module):
        def forward(self, x):
            first, second = x.chunk(2, dim=-1)
            return first.contiguous().neg() + second

    capture = capture_module(Halves(), (torch.randn(4, 16, 8),))
    found = of_module(capture)
    shares = {each.name: found.scattered_share(each) for each in capture.graph.operators}
    assert shares["aten.neg"] == 0.0
    assert shares["aten.add"] == 1.0
    assert (found.n_rows, found.tf32) == ({64}, False)


# Which elementwise operators of the decoder meet tensors with gaps.

GATED, PLAIN = model("small"), model("gpt2")
X = tensor(4, 128, 3072)


def share(name, shape, module, phase="forward", inputs=(X, X)):
    return scattered_share(operator(name, inputs, [X], phase, module), shape)


@pytest.mark.parametrize("name", ["silu", "silu_backward", "gelu", "relu", "threshold_backward"])
def test_activations_read_a_half_of_each_row_where_they_are_gated(name):
    assert share(name, GATED, "blocks.*.ff") == 1.0
    assert share(name, PLAIN, "blocks.*.ff") == 0.0


def test_of_the_gates_two_gradients_one_multiplies_by_what_is_whole():
    assert share("mul", GATED, "blocks.*.ff") == 1.0
    assert share("mul", GATED, "blocks.*.ff", "backward") == 0.5
    assert share("mul", PLAIN, "blocks.*.ff") == 0.0


def test_of_what_experts_gave_gradients_are_expanded_unless_they_were_cast():
    mixture = msgspec.structs.replace(GATED, n_experts=4, n_active_experts=2)
    given = tensor(512, 2, 768)
    whole = operator("mul", (given, given), [given], "backward", "blocks.*.ff")
    expanded = msgspec.structs.replace(whole, bytes_read=whole.bytes_read * 3 // 4)
    assert scattered_share(whole, mixture) == 0.0
    assert scattered_share(expanded, mixture) == 1.0
    rows = operator("mul", (tensor(1024, 3072),) * 2, [given], "backward", "blocks.*.ff")
    assert scattered_share(rows, mixture) == scattered_share(rows, GATED) == 0.5


@pytest.mark.parametrize(("name", "scattered"), [("mul", 1.0), ("neg", 1.0), ("add", 0.0)])
def test_rotation_multiplies_and_negates_halves_of_heads(name, scattered):
    assert share(name, GATED, "blocks.*.attention") == scattered
    assert share(name, PLAIN, "blocks.*.attention") == 0.0


def test_what_is_broadcast_is_scattered_wherever_it_is():
    assert share("add", PLAIN, None, inputs=(X, tensor(128, 3072))) == 1.0
    assert share("div", PLAIN, None, inputs=(X, tensor())) == 1.0
    assert share("add", PLAIN, None, inputs=(X,)) == 0.0
    assert share("add", GATED, "blocks.*", inputs=(X, X)) == 0.0
