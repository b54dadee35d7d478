"""Levers of parts that are found by what they compute, on modules of a user's; in Triton's interpreter."""

import pytest
import torch
from torch import nn

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.levers.in_place import Applied, Live
from peakward.lab.models.decoder import Decoder
from peakward.lab.numerics.verify import verify
from peakward.levers.catalogue import apply_to_module, case_obstacle
from peakward.levers.swiglu import AXIS
from peakward.models.presets import model
from peakward.records.case import AS_WRITTEN
from peakward.records.errors import PeakwardError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has them compiled")
PARTS = ["norm", "rope", "swiglu"]


@pytest.mark.parametrize("part", PARTS)
def test_the_numbers_of_a_users_module_hold(part, make_module_case):
    pytest.importorskip("transformers")
    base = make_module_case("hf:llama", pass_="forward_backward")
    candidate = make_module_case("hf:llama", pass_="forward_backward", **{part: "fused"})
    found = verify(base, candidate, "reordered")
    assert (found.verdict, found.reason) == ("holds", None)
    # Interpreted, the kernel of RoPE rounds as torch's operators do.
    differs = any(each.candidate_error != each.base_error for each in found.errors)
    assert differs == (part != "rope")


@pytest.mark.parametrize("part", PARTS)
def test_a_cpu_without_its_kernels_is_refused(part, make_module_case):
    case = make_module_case("hf:llama", **{part: "fused"})
    found = case_obstacle(case, compute_capability=None, has_compiler=True)
    assert found == f"{part} fused needs a CUDA GPU, got a CPU"


def test_a_module_without_such_networks_is_refused():
    with pytest.raises(PeakwardError, match=r"silu\(gate\(x\)\).*got Sequential without: call"):
        AXIS.to_module(nn.Sequential(nn.Linear(2, 2), nn.SiLU()), "fused")


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 50,
    }
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=True, attention_dropout=0.1)
    return transformers.AutoModelForCausalLM.from_config(config)


def loss_and_gradients(model, ids):
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return [loss.detach(), *(each.grad.clone() for each in model.parameters())]


def test_all_together_are_applied_and_taken_back_bit_for_bit(llama):
    ids = torch.randint(50, (2, 8))
    before = loss_and_gradients(llama, ids)
    kinds = [type(each) for each in llama.modules()]
    settings = dict.fromkeys(PARTS, "fused")
    applied = Applied(Live(model=llama), AS_WRITTEN.with_settings(settings))
    assert [type(each) for each in llama.modules()] != kinds
    for one, other in zip(loss_and_gradients(llama, ids), before, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)
    assert applied.undo() == ()
    assert [type(each) for each in llama.modules()] == kinds
    assert all(map(torch.equal, loss_and_gradients(llama, ids), before))


def test_the_decoder_is_built_with_its_parts():
    decoder = Decoder(model("tiny"), implementation("naive"))
    before = [type(each) for each in decoder.modules()]
    apply_to_module(
        decoder, AS_WRITTEN.with_settings({"rope": "fused", "swiglu": "fused"}), is_built=True
    )
    assert [type(each) for each in decoder.modules()] == before
