"""The fused step of decode, compiled, launched with dependences, and replayed from a graph; and the loop of
generation on it."""

import msgspec
import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.fused_step import FusedDecoder
from peakward.lab.inference.generate import generate
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.levers.prepare import prepare
from peakward.lab.models import decoder
from peakward.lab.models.layers import QuantisedLinear
from peakward.lab.numerics.verify import verify
from peakward.models import presets
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.generation import Sampling

pytestmark = pytest.mark.gpu
FUSED = (("decode_step", "fused"),)
SEPARATE = {"attention": "flash-decode", "norm": "fused", "rope": "fused", "swiglu": "fused"}


def case(model, weights, **configuration):
    return ModelCase(
        model=msgspec.structs.replace(presets.model(model), n_layers=4),
        workload=Workload(batch_size=1, seq_len=777, pass_="decode"),
        configuration=Configuration(precision="bf16", weights=weights, **configuration),
        device="cuda",
    )


@pytest.mark.parametrize("weights", ["dense", "int8", "int4:128"])
@pytest.mark.parametrize("model", ["small", "2.7B"])
def test_it_errs_no_more_than_separate_kernels_do(model, weights):
    found = verify(case(model, weights, **SEPARATE), case(model, weights, more=FUSED), "reordered")
    assert found.verdict == "holds", found


@pytest.mark.parametrize("weights", ["dense", "int8", "int4:128"])
def test_replays_on_each_others_heels_are_equal(weights):
    """A kernel that read before its wait would read another's results, now and then."""
    with prepare(case("2.7B", weights, more=FUSED, cuda_graphs=True)) as step:
        for _ in range(8):
            for _ in range(100):
                step.step()
            found = step.outputs()
            assert found.n_nonfinite == 0
            assert found.repeats


SHAPES = {
    "small": msgspec.structs.replace(presets.model("small"), n_layers=4),
    "as SmolLM2": msgspec.structs.replace(
        presets.model("small"), n_layers=4, d_model=576, d_ff=1536, n_heads=9, n_kv_heads=3,
        head_dim=64, vocab_size=49_152, tied_head=True, rope_theta=100_000.0,
    ),
    "as Qwen2": msgspec.structs.replace(
        presets.model("small"), n_layers=4, d_model=896, d_ff=4864, n_heads=14, n_kv_heads=2,
        head_dim=64, vocab_size=151_936, tied_head=True, qkv_bias=True, rope_theta=1e6,
    ),
}  # fmt: skip
LOOPS = [(name, "dense") for name in SHAPES] + [("small", "int8"), ("small", "int4:128")]


def built(shape, weights, dtype=torch.bfloat16):
    """A model whose tokens depend on those before, with random biases."""
    model = decoder.build(
        shape,
        attention=implementation("sdpa"),
        weights=weights,
        device="cuda",
        dtype=dtype,
        seed=0,
    )
    generator = torch.Generator("cuda").manual_seed(1)
    for each in model.blocks.modules():
        if not isinstance(each, torch.nn.Linear):
            continue
        (each.scale if isinstance(each, QuantisedLinear) else each.weight.data).mul_(3)
        if each.bias is not None:
            drawn = torch.randn(each.bias.shape, generator=generator, device="cuda")
            each.bias.data.copy_(drawn.mul_(0.1))
    return model.eval().requires_grad_(False)


def widened(model):
    """The same numbers in fp32."""
    wide = decoder.Decoder(model.shape, implementation("sdpa")).cuda().requires_grad_(False)
    for one, other in zip(model.modules(), wide.modules(), strict=True):
        if isinstance(one, QuantisedLinear):
            other.weight.copy_(one.dequantised(torch.float32))
        for name, value in one.named_parameters(recurse=False):
            getattr(other, name).copy_(value)
    return wide.eval()


def loop(model, *, fused, capacity=700, n=600):
    cache = ContiguousCache(
        model.shape, n_rows=1, capacity=capacity, device="cuda", dtype=torch.bfloat16,
        attention="flash-decode",
    )  # fmt: skip
    stepped = FusedDecoder(model, cache) if fused else model
    return Decoding(stepped, cache, by=Sampling(), most_new_tokens=n)


@pytest.mark.parametrize(("name", "weights"), LOOPS)
@torch.inference_mode()
def test_texts_are_those_of_the_modules_up_to_the_noise(name, weights):
    """Each token of both texts has, behind the text before it, a logit in fp32 that is below the best by no
    more than four times the error of a pass in bf16: the taken one and the best may each err by twice that,
    as a reordered step may. So the texts are the same up to a choice that lies within the noise."""
    model = built(SHAPES[name], weights)
    wide, prompt = widened(model), [5, 9, 2, 7]
    for fused in (False, True):
        text = generate(loop(model, fused=fused), [prompt]).tokens[0]
        assert len(text) == 600
        whole = torch.tensor([[*prompt, *text[:-1]]], device="cuda")
        exact = wide(whole)[0, len(prompt) - 1 :]
        noise = float((model(whole)[0, len(prompt) - 1 :] - exact).abs().max())
        taken = exact.gather(1, torch.tensor(text, device="cuda")[:, None])[:, 0]
        assert float((exact.amax(-1) - taken).max()) <= 4 * noise


@torch.inference_mode()
def test_one_graph_serves_every_length_and_waits_for_nothing():
    model = built(SHAPES["small"], "dense")
    decoding = loop(model, fused=True)
    decoding.prepare(4, 700)
    assert decoding.n_captured == 1
    decoding.admit(0, [5, 9, 2, 7], 600, 0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoding.run(599)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert decoding.n_captured == 1
    assert int(decoding.cache.held) == decoding.cache.lengths[0] == 4 + 599


@torch.inference_mode()
def test_a_text_is_the_same_each_time_in_a_row_that_was_used():
    """A step that read a position too early, or a count that was left over, would change it now and then."""
    decoding = loop(built(SHAPES["as SmolLM2"], "dense"), fused=True)
    first = generate(decoding, [[5, 9, 2, 7]]).tokens
    for _ in range(5):
        generate(decoding, [[8, 3]])
        assert generate(decoding, [[5, 9, 2, 7]]).tokens == first
