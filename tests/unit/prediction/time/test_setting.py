"""What decides a step's time and is in no operator's record."""

import msgspec
import pytest
import torch

from peakward.lab.models.module_capture import capture_module
from peakward.models.presets import model
from peakward.prediction.time.setting import of_case, of_module

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
