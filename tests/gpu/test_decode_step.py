"""The fused step of decode, compiled, launched with dependences, and replayed from a graph; and the loop of
generation on it."""

import msgspec
import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.drafts import ModelDraft, NGrams, without_blocks
from peakward.lab.inference.fused_step import FusedDecoder, FusedDecoding, FusedStep
from peakward.lab.inference.generate import generate
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.inference.speculation import Speculation
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


@pytest.mark.parametrize("kept", ["static", "int8"])
@pytest.mark.parametrize("weights", ["dense", "int8", "int4:128"])
@pytest.mark.parametrize("model", ["small", "2.7B"])
def test_it_errs_no_more_than_separate_kernels_do(model, weights, kept):
    separate = case(model, weights, kv_cache=kept, **SEPARATE)
    fused = case(model, weights, kv_cache=kept, attention="flash-decode", more=FUSED)
    found = verify(separate, fused, "reordered")
    assert found.verdict == "holds", found


@pytest.mark.parametrize("kept", ["static", "int8"])
@pytest.mark.parametrize("weights", ["dense", "int8", "int4:128"])
def test_replays_on_each_others_heels_are_equal(weights, kept):
    """A kernel that read before its wait would read another's results, now and then."""
    how = {"kv_cache": kept, "attention": "flash-decode", "more": FUSED, "cuda_graphs": True}
    with prepare(case("2.7B", weights, **how)) as step:
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


def cache_of(model, *, n_rows=1, capacity=700, stored=None):
    return ContiguousCache(
        model.shape, n_rows=n_rows, capacity=capacity, device="cuda", dtype=torch.bfloat16,
        attention="flash-decode", stored=stored,
    )  # fmt: skip


def pages_of(model, *, n_rows=1, stored=None):
    return PagedCache(
        model.shape, n_rows=n_rows, n_pages=45 * n_rows, longest=720, device="cuda",
        dtype=torch.bfloat16, attention="flash-decode", stored=stored,
    )  # fmt: skip


@pytest.mark.parametrize(("n_rows", "n_new"), [(3, 1), (16, 1), (1, 5), (1, 16)])
@pytest.mark.parametrize(("name", "weights"), LOOPS)
@torch.inference_mode()
def test_several_rows_err_no_more_than_the_modules_do(name, weights, n_rows, n_new):
    """Than twice that, as a reordered step may; and replays on each other's heels are equal."""
    model = built(SHAPES[name], weights)
    wide, n = widened(model), 300
    text = torch.randint(model.shape.vocab_size, (n_rows, n + n_new), device="cuda")
    cache = cache_of(model, n_rows=n_rows)
    for row, prompt in enumerate(text[:, :n].tolist()):
        cache.prefill(model, row, prompt)
    step = FusedStep(model, cache.storage.layers, n_new=n_new)
    ids = text[:, n:].flatten()
    found = step(ids, cache.held)
    exact, rounded = (each(text)[:, n:].flatten(0, 1) for each in (wide, model))
    assert float((found - exact).abs().max()) <= 2 * float((rounded - exact).abs().max())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = step(ids, cache.held)
    for _ in range(100):
        graph.replay()
    assert torch.equal(again, found)


@pytest.mark.parametrize("kind", [cache_of, pages_of])
@pytest.mark.parametrize(("n_rows", "n_new"), [(1, 1), (3, 1), (1, 5)])
@pytest.mark.parametrize(("name", "weights"), LOOPS)
@torch.inference_mode()
def test_on_a_cache_in_int8_it_errs_no_more_than_the_modules_do(name, weights, n_rows, n_new, kind):
    """As above, beside the modules' step on the same cache; and replays leave the cache as it is."""
    model = built(SHAPES[name], weights)
    wide, n = widened(model), 300
    text = torch.randint(model.shape.vocab_size, (n_rows, n + n_new), device="cuda")
    cache = kind(model, n_rows=n_rows, stored=torch.int8)
    for row, prompt in enumerate(text[:, :n].tolist()):
        cache.prefill(model, row, prompt)
        cache.reserve(row, n_new)
    active = torch.ones(n_rows, dtype=torch.bool, device="cuda")
    rounded = cache.score(model, text[:, n:], active, n + n_new).flatten(0, 1)
    by_modules = [each.clone() for each in cache.storage.parts]
    fused, ids = FusedDecoder(model, cache).step(n_new), text[:, n:].flatten()
    found = fused(ids, cache.held)
    exact = wide(text)[:, n:].flatten(0, 1)
    assert float((found - exact).abs().max()) <= 2 * float((rounded - exact).abs().max())
    left = [each.clone() for each in cache.storage.parts]
    for one, other in zip(left[:2], by_modules[:2], strict=True):
        # The new ones alone, of activations that were summed in another order.
        assert int((one != other).sum()) <= model.shape.kept_elements * n_rows * n_new
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = fused(ids, cache.held)
    for _ in range(100):
        graph.replay()
    assert torch.equal(again, found)
    assert all(torch.equal(*each) for each in zip(cache.storage.parts, left, strict=True))


def loops(model, *, n_rows=1, n=600):
    """Loops that make n new tokens: on modules, on fused steps, with the choice in them, and with guesses
    that one fused step checks."""
    how = {"by": Sampling(), "most_new_tokens": n}
    caches = [cache_of(model, n_rows=n_rows) for _ in range(5)]
    draft = without_blocks(model, [1, 2])
    pages = pages_of(model, n_rows=n_rows)
    of_draft = cache_of(draft, n_rows=n_rows)
    return {
        "modules": Decoding(model, caches[0], **how),
        "fused": Decoding(FusedDecoder(model, caches[1]), caches[1], **how),
        "chosen within": FusedDecoding(model, caches[2], **how),
        "in pages": FusedDecoding(model, pages, **how),
        "n-grams": Speculation(
            FusedDecoder(model, caches[3]), caches[3], NGrams(), n_guessed=4, **how
        ),
        "a draft": Speculation(
            FusedDecoder(model, caches[4]), caches[4],
            ModelDraft(FusedDecoder(draft, of_draft), of_draft), n_guessed=4, **how,
        ),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "weights"), LOOPS)
@torch.inference_mode()
def test_texts_are_those_of_the_modules_up_to_the_noise(name, weights):
    """Each token of a text has, behind the text before it, a logit in fp32 that is below the best by no more
    than four times the error of a pass in bf16: the taken one and the best may each err by twice that, as a
    reordered step may. So the texts are the same up to a choice that lies within the noise."""
    model = built(SHAPES[name], weights)
    wide, prompts = widened(model), [[5, 9, 2, 7], [31], [8, 3]]
    for n_rows in (1, 3):
        for decoding in loops(model, n_rows=n_rows).values():
            for prompt, text in zip(
                prompts, generate(decoding, prompts[:n_rows]).tokens, strict=False
            ):
                assert len(text) == 600
                whole = torch.tensor([[*prompt, *text[:-1]]], device="cuda")
                exact = wide(whole)[0, len(prompt) - 1 :]
                noise = float((model(whole)[0, len(prompt) - 1 :] - exact).abs().max())
                taken = exact.gather(1, torch.tensor(text, device="cuda")[:, None])[:, 0]
                assert float((exact.amax(-1) - taken).max()) <= 4 * noise


@torch.inference_mode()
def test_the_choice_within_the_step_is_that_of_torch():
    """In bf16 some of the best logits are equal: the lowest token of these is taken."""
    texts = loops(built(SHAPES["as Qwen2"], "dense"), n_rows=3)
    prompts = [[5, 9, 2, 7], [31], [8, 3]]
    made = [generate(texts[name], prompts).tokens for name in ("fused", "chosen within")]
    assert made[0] == made[1]


@torch.inference_mode()
def test_one_graph_serves_every_length_and_waits_for_nothing():
    model = built(SHAPES["small"], "dense")
    decoding = loops(model)["chosen within"]
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
    decoding = loops(built(SHAPES["as SmolLM2"], "dense"))["chosen within"]
    first = generate(decoding, [[5, 9, 2, 7]]).tokens
    for _ in range(5):
        generate(decoding, [[8, 3]])
        assert generate(decoding, [[5, 9, 2, 7]]).tokens == first
