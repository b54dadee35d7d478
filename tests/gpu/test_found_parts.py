"""Norms, activations, SwiGLU and RoPE of modules that nobody prepared, by Peakward's kernels on a GPU."""

import contextlib
import copy

import pytest
import torch

from peakward.kernels import fuse_activations, fuse_norms, fuse_rope, fuse_swiglu
from peakward.kernels.ops.norm_modules.behaviour import norm_of
from peakward.lab.numerics.judge import UNIT_ROUNDOFF

pytestmark = pytest.mark.gpu
transformers = pytest.importorskip("transformers")
DEVICE = "cuda"
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 500,
    "pad_token_id": 0,
}
N = {
    "llama": {fuse_norms: 5, fuse_swiglu: 2, fuse_rope: 2},
    "gemma": {fuse_norms: 5, fuse_swiglu: 2, fuse_rope: 2},
    "phi3": {fuse_norms: 5, fuse_swiglu: 2, fuse_rope: 2},
    "gpt2": {fuse_norms: 5, fuse_activations: 2},
}


def loss_and_gradients(model, ids, context):
    model.zero_grad()
    with context:
        loss = model(ids, labels=ids).loss
    loss.backward()
    return [loss.detach(), *(each.grad.clone() for each in model.parameters())]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
@pytest.mark.parametrize("kind", N)
def test_a_step_errs_no_more_than_it_did(kind, precision):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SIZES, n_embd=256, n_layer=2, n_head=4)
    model = transformers.AutoModelForCausalLM.from_config(config).to(DEVICE).eval()
    ids = torch.randint(500, (2, 64), device=DEVICE)
    exact = loss_and_gradients(copy.deepcopy(model).double(), ids, contextlib.nullcontext())
    model.to(torch.bfloat16 if precision == "bf16" else torch.float32)

    def errors():
        mixed = torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16-mixed")
        found = loss_and_gradients(model, ids, mixed)
        pairs = zip(found, exact, strict=True)
        return torch.stack([(one.double() - right).norm() / right.norm() for one, right in pairs])

    plain = errors()
    for fuse, n in N[kind].items():
        assert fuse(model) == n
    # The loss is one number and may agree by luck: its least error is the operands' roundoff.
    plain[0] = plain[0].clamp_min(UNIT_ROUNDOFF[precision])
    assert float((errors() / plain.clamp_min(1e-6)).max()) < 2.5


def test_types_are_asked_for_again_on_another_device():
    """A factory builds on the CPU what is trained on a GPU, where autocast casts other operators."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    norm = llama.LlamaRMSNorm(256)
    plain = copy.deepcopy(norm).to(DEVICE)
    assert fuse_norms(norm) == 1
    norm.to(DEVICE)
    x = torch.randn(8, 256, device=DEVICE, dtype=torch.bfloat16)
    with torch.autocast(DEVICE, torch.bfloat16):
        found, expected = norm(x), plain(x)
    assert found.dtype == expected.dtype
    assert not torch.equal(found, expected), "computed by the kernel"
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert norm_of(plain) is not None
