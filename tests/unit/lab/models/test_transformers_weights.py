"""The decoder is the model that transformers has: same parameters, logits, loss and gradients."""

import math

import pytest
import torch
from torch import nn

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.models import decoder
from peakward.lab.models.transformers_weights import decoder_state, shape_of
from peakward.models.presets import model
from peakward.records.errors import PeakwardError

transformers = pytest.importorskip("transformers")

SEQ_LEN = 24
LLAMA = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def llama(n_kv_heads: int, **options: object) -> nn.Module:
    config = transformers.LlamaConfig(**{**LLAMA, "num_key_value_heads": n_kv_heads, **options})
    return transformers.LlamaForCausalLM(config)


def gpt2(**options: object) -> nn.Module:
    sizes = {"vocab_size": 61, "n_positions": 40, "n_embd": 32, "n_layer": 3, "n_head": 4}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            **sizes, bos_token_id=None, eos_token_id=None, attn_implementation="sdpa", **options
        )
    )


def mistral() -> nn.Module:
    return transformers.MistralForCausalLM(
        transformers.MistralConfig(
            **LLAMA, num_key_value_heads=2, sliding_window=7, head_dim=16, rms_norm_eps=1e-5
        )
    )


def mixtral(**options: object) -> nn.Module:
    sizes = {"num_local_experts": 5, "num_experts_per_tok": 2, **options}
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            **LLAMA, num_key_value_heads=2, experts_implementation="eager", **sizes
        )
    )


def qwen2() -> nn.Module:
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**LLAMA, num_key_value_heads=2, tie_word_embeddings=True)
    )


MODELS = {
    "gpt2": gpt2,
    "gpt2 relu, odd width": lambda: gpt2(activation_function="relu", n_inner=50),
    "llama mha": lambda: llama(4),
    "llama gqa": lambda: llama(2, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    "llama mqa": lambda: llama(1),
    "llama biases": lambda: llama(4, attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "mistral, window 7 of 24": mistral,
    "mixtral": mixtral,
    "mixtral, three of four, window": lambda: mixtral(
        num_local_experts=4, num_experts_per_tok=3, sliding_window=7
    ),
    "qwen2 qkv bias, tied": qwen2,
}


class Fp64Rotation(nn.Module):
    """Their rotary embedding, whose forward computes in fp32 whatever the model's dtype, in fp64."""

    def __init__(self, shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x, position_ids):
        d = self.shape.head_dim
        rates = [self.shape.rope_theta ** (-2 * i / d) for i in range(d // 2)] * 2
        angle = position_ids[..., None] * torch.tensor(rates, dtype=torch.float64)
        return angle.cos(), angle.sin()


class Fp64RmsNorm(nn.Module):
    """Their RMSNorm, which computes in fp32 whatever the model's dtype, in fp64."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x):
        return self.weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps)


class Fp64Router(nn.Module):
    """Their router, which takes its softmax in fp32 whatever the model's dtype, in fp64."""

    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.weight, self.top_k = router.weight, router.top_k

    def forward(self, x):
        odds = (x.flatten(0, -2) @ self.weight.T).exp()
        best, index = (odds / odds.sum(-1, keepdim=True)).topk(self.top_k, dim=-1)
        return None, best / best.sum(-1, keepdim=True), index


def in_fp64(model: nn.Module) -> nn.Module:
    """The model in fp64 throughout: their three fp32 islands are replaced by their formulas."""
    shape = shape_of(model.config)
    model = model.double()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(module, name, Fp64RmsNorm(child.weight, child.variance_epsilon))
            if type(child).__name__.endswith("RotaryEmbedding"):
                setattr(module, name, Fp64Rotation(shape))
            if type(child).__name__.endswith("TopKRouter"):
                setattr(module, name, Fp64Router(child))
    return model


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def theirs(request) -> nn.Module:
    torch.manual_seed(0)
    model = request.param().eval()
    for parameter in model.parameters():  # Large enough that the logits depend on every weight.
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(61, (2, SEQ_LEN), generator=torch.Generator().manual_seed(1))


def same(theirs: nn.Module, attention: str = "naive") -> decoder.Decoder:
    """The reference decoder with their weights, in their dtype."""
    shape = shape_of(theirs.config)
    dtype = next(theirs.parameters()).dtype
    model = decoder.build(
        shape, attention=implementation(attention), device="cpu", dtype=dtype, seed=0
    )
    model.load_state_dict(decoder_state(theirs.state_dict(), shape))
    return model.eval()


def relative_error(x: torch.Tensor, reference: torch.Tensor) -> float:
    return float((x - reference).norm() / reference.norm())


def budget(shape) -> float:
    """Rounding of two fp64 evaluations of one formula in different orders, as a relative norm.

    Each of the layers' seven steps (two norms, four matmuls, attention) rounds sums of at most
    d_ff random terms: ε·√d_ff a step, and independent steps add in squares.
    """
    return torch.finfo(torch.float64).eps * math.sqrt(shape.d_ff * 7 * shape.n_layers)


def test_parameter_count_is_theirs(theirs):
    shape = shape_of(theirs.config)
    ours = decoder.build(
        shape, attention=implementation("naive"), device="cpu", dtype=torch.float32, seed=0
    )
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_logits_are_theirs_in_fp64(theirs, ids, attention):
    theirs = in_fp64(theirs)
    ours = same(theirs, attention)
    with torch.no_grad():
        error = relative_error(ours(ids), theirs(ids, use_cache=False).logits)
    assert error <= budget(ours.shape)


def test_loss_and_gradients_are_theirs_in_fp64(theirs, ids):
    theirs = in_fp64(theirs)
    ours = same(theirs)
    logits = theirs(ids, use_cache=False).logits
    targets = ids.roll(-1, dims=1)
    # Their own loss function rounds the logits to fp32; this is the same formula in fp64.
    expected = -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
    expected.backward()
    loss = ours(ids, targets)
    loss.backward()
    assert abs(loss.item() - expected.item()) <= budget(ours.shape) * expected.item()
    gradients = decoder_state(
        {name: parameter.grad for name, parameter in theirs.named_parameters()}, ours.shape
    )
    for name, parameter in ours.named_parameters():
        # Backward goes through every step twice more: input and weight gradients.
        assert relative_error(parameter.grad, gradients[name]) <= 3 * budget(ours.shape), name


def test_fp32_logits_err_no_more_than_twice_theirs(theirs, ids):
    ours = same(theirs)
    with torch.no_grad():
        mine, their_own = ours(ids), theirs(ids, use_cache=False).logits
        oracle = in_fp64(theirs)(ids, use_cache=False).logits
    assert relative_error(mine, oracle) <= 2 * relative_error(their_own, oracle)


def test_loss_is_that_of_their_loss_function(theirs, ids):
    """The mean over all tokens, which their model gives for labels that are shifted already."""
    targets = ids.roll(-1, dims=1)
    expected = theirs(ids, labels=targets, shift_labels=targets, use_cache=False).loss
    assert same(theirs)(ids, targets).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_permuted_projection_is_noticed(theirs, ids):
    """That the comparisons above can fail: the packed rows in another order give other logits."""
    theirs = in_fp64(theirs)
    ours = same(theirs)
    for block in ours.blocks:
        block.attention.qkv.weight.data = block.attention.qkv.weight.data.flip(0)
    with torch.no_grad():
        assert relative_error(ours(ids), theirs(ids, use_cache=False).logits) > 1e-3


def test_tied_head_stays_one_tensor():
    ours = same(qwen2())
    assert ours.readout.head.weight is ours.embedding.weight


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (
            lambda: transformers.LlamaConfig(
                rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
            ),
            "rope of type linear",
        ),
        (lambda: transformers.LlamaConfig(attention_bias=True), "attention biases without"),
        (lambda: transformers.GPT2Config(scale_attn_weights=False), "unscaled attention"),
        (
            lambda: transformers.GPT2Config(scale_attn_by_inverse_layer_idx=True),
            "attention scaled by layer",
        ),
        (lambda: transformers.GPT2Config(add_cross_attention=True), "cross-attention"),
        (
            lambda: transformers.Qwen2Config(
                num_hidden_layers=4, use_sliding_window=True, max_window_layers=2
            ),
            "full and windowed layers mixed",
        ),
        (lambda: transformers.LlamaConfig(hidden_act="mish"), "'mish'"),
        (lambda: transformers.MixtralConfig(num_local_experts=1), "a router before one expert"),
        (lambda: transformers.MixtralConfig(output_router_logits=True), "a loss on its router"),
        (transformers.GPTNeoXConfig, "'gpt_neox'"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_the_decoder_lacks_is_refused(config, what):
    with pytest.raises(PeakwardError, match=what):
        shape_of(config())


def test_windowed_qwen2_has_a_window():
    config = transformers.Qwen2Config(
        num_hidden_layers=2, use_sliding_window=True, max_window_layers=0, sliding_window=5
    )
    assert shape_of(config).window == 5
    assert shape_of(transformers.Qwen2Config()).window is None


def test_mixtral_s_published_config_is_the_catalogued_shape():
    config = transformers.MixtralConfig(
        name_or_path="mixtral-8x7b",
        vocab_size=32_000,
        num_hidden_layers=32,
        hidden_size=4096,
        intermediate_size=14_336,
        num_attention_heads=32,
        num_key_value_heads=8,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=32_768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        rms_norm_eps=1e-5,
        sliding_window=None,
    )
    assert shape_of(config) == model("mixtral-8x7b")


def test_missing_weights_are_named():
    model = llama(4)
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(PeakwardError, match=r"none named model\.layers\.1\.mlp\.up_proj\.weight"):
        decoder_state(state, shape_of(model.config))
