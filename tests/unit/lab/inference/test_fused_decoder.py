"""The loop on the fused step makes the texts of the loop on modules, in Triton's interpreter on a CPU."""

import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.generate import generate
from peakward.lab.inference.sequences import ContiguousCache, QuantizedCache
from peakward.lab.models import decoder
from peakward.lab.models.layers import QuantisedLinear
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling
from tiers import in_full

pytest.importorskip("triton")
from peakward.lab.inference.fused_step import FusedDecoder

N_NEW, CAPACITY = 4, 20
PROMPTS = ([5, 9, 2, 7], [31])
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has it compiled")
MODELS = {
    "as real ones": {"n_kv_heads": 2, "tied_head": True, "qkv_bias": True, "rope_theta": 500.0},
    "int8": {"weights": "int8", "n_layers": 1},
}


@pytest.fixture
def make(make_shape):
    def model(dtype=torch.float32, *, weights="dense", **changes):
        found = decoder.build(
            make_shape(**changes),
            attention=implementation("naive"),
            weights=weights,
            device="cpu",
            dtype=dtype,
            seed=0,
        )
        for each in found.blocks.modules():  # So that one token leads to another.
            if isinstance(each, QuantisedLinear):
                each.scale.mul_(40)
            elif isinstance(each, torch.nn.Linear):
                each.weight.data.mul_(40)
        return found.eval().requires_grad_(False)

    return model


def cache_of(model, kind=ContiguousCache, n_rows=1, **stored):
    dtype = model.embedding.weight.dtype
    return kind(model.shape, n_rows=n_rows, capacity=CAPACITY, device="cpu", dtype=dtype, **stored)


def loops(model):
    """The loop on modules and the loop on fused steps, each with a cache of its own."""
    found = []
    for fused in (False, True):
        cache = cache_of(model)
        stepped = FusedDecoder(model, cache) if fused else model
        found.append(Decoding(stepped, cache, by=Sampling(), most_new_tokens=N_NEW))
    return found


@pytest.mark.parametrize("name", [*list(MODELS)[:1], *in_full(list(MODELS)[1:])])
def test_texts_of_one_loop_are_those_of_the_other(name, make):
    """One after the other in the same row, so that a position that stayed behind would show; and so are the
    keys and values that both leave."""
    model = make(**MODELS[name])
    plain, fused = loops(model)
    for prompt in PROMPTS if "weights" not in MODELS[name] else PROMPTS[1:]:
        texts = [generate(each, [prompt]).tokens for each in (plain, fused)]
        assert texts[0] == texts[1]
        assert len(set(texts[0][0])) > 1
    n = len(PROMPTS[-1]) + N_NEW - 1
    for name in ("keys", "values"):
        exact, found = (getattr(each.cache, name) for each in (plain, fused))
        torch.testing.assert_close(found[..., :n, :], exact[..., :n, :], rtol=1e-3, atol=1e-3)
        assert not found[..., CAPACITY // 2 :, :].any()


@torch.inference_mode()
def test_prompts_go_through_the_modules(make):
    logits = [each.cache.prefill(each.model, 0, PROMPTS[0]) for each in loops(make())]
    assert torch.equal(*logits)


@torch.inference_mode()
def test_in_16_bits_no_choice_is_further_off_than_the_noise(make):
    """The noise is that of a pass in 16 bits over the text; a reordered step may double it. The interpreter
    computes bf16 wrongly."""
    wide, narrow = make(), make(torch.float16)
    for decoding in loops(narrow):
        text = generate(decoding, [PROMPTS[0]]).tokens[0]
        whole = torch.tensor([[*PROMPTS[0], *text[:-1]]])
        exact, rounded = (each(whole)[0, len(PROMPTS[0]) - 1 :] for each in (wide, narrow))
        taken = exact.gather(1, torch.tensor(text)[:, None])[:, 0]
        assert float((exact.amax(-1) - taken).max()) <= 4 * float((rounded - exact).abs().max())


def test_refusals(make):
    with pytest.raises(PeakwardError, match="decode-step fused needs no window, got 5"):
        model = make(window=5)
        FusedDecoder(model, cache_of(model))
    model = make()
    with pytest.raises(PeakwardError, match="expected a cache of one row, got 2"):
        FusedDecoder(model, cache_of(model, n_rows=2))
    with pytest.raises(PeakwardError, match="the model's type, without gaps"):
        FusedDecoder(model, cache_of(model, QuantizedCache, stored=torch.int8))
