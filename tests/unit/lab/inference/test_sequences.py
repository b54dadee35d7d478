"""Sequences of unequal lengths in every kind of cache say, token by token, what a forward pass over all of
them says."""

import math

import pytest
import torch

from peakward.kernels.ops.attention.reference import attention as reference_attention
from peakward.kernels.ops.attention.reference import for_every_head
from peakward.kernels.ops.attention.sdpa import unplanned
from peakward.kernels.ops.decode_attention.reference import dequantized, quantized
from peakward.kernels.ops.rotation.api import rotate
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache, SlidingCache
from peakward.lab.models import decoder
from peakward.records.errors import PeakwardError

EPS64 = torch.finfo(torch.float64).eps
SHAPES = {
    "rope": {},
    "learned": {"positions": "learned", "norm": "layernorm", "gated": False, "bias": True},
    "sinusoidal": {"positions": "sinusoidal"},
    "alibi": {"positions": "alibi"},
    "gqa": {"n_kv_heads": 2, "qkv_bias": True},
    "mqa": {"n_kv_heads": 1},
    "window": {"window": 5},
    "window of one": {"window": 1},
    "window, alibi, gqa": {"window": 4, "positions": "alibi", "n_kv_heads": 2},
    "experts": {"n_experts": 4, "n_active_experts": 2},
}
PROMPTS, STEPS = (7, 1, 12), 9
LONGEST = max(PROMPTS) + STEPS
ROWS = slice(0, len(PROMPTS))
ON_CPU = {"n_rows": len(PROMPTS), "device": "cpu", "dtype": torch.float64}
CACHES = {
    "contiguous": lambda shape: ContiguousCache(shape, capacity=LONGEST, **ON_CPU),
    "pages": lambda shape: PagedCache(shape, n_pages=20, page_size=4, **ON_CPU),
    "pages of one": lambda shape: PagedCache(shape, n_pages=80, page_size=1, **ON_CPU),
    "ring": lambda shape: SlidingCache(shape, n_recent=shape.window or LONGEST, **ON_CPU),
    "ring with sinks": lambda shape: SlidingCache(shape, n_recent=LONGEST, n_sinks=3, **ON_CPU),
}


def texts(vocab_size, lengths):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocab_size, (n,), generator=generator) for n in lengths]


def through(cache, model, whole, prompts=PROMPTS):
    """The logits (STEPS + 1, vocab) of each text: behind its prompt, and behind each further token."""
    found = [
        [cache.prefill(model, row, text[:n].tolist())]
        for row, (text, n) in enumerate(zip(whole, prompts, strict=True))
    ]
    for step in range(STEPS):
        ids = torch.stack([text[n + step] for text, n in zip(whole, prompts, strict=True)])
        for row, logits in enumerate(cache.logits(model, ids[:, None], ROWS).split(1)):
            found[row].append(logits)
    return [torch.cat(each) for each in found]


def close(found, expected, n_layers):
    # The same sums in another order: the bound of `lab.numerics.verify`, for the errors of both.
    bound = EPS64 * math.sqrt(16 * n_layers + 2)
    return float((found - expected).norm() / expected.norm()) <= bound


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
@torch.no_grad()
def test_exact_caches(kind, changes, make_decoder):
    model = make_decoder(changes, "sdpa" if kind == "contiguous" else "naive")
    if kind == "ring with sinks" and (model.shape.window or model.shape.positions != "rope"):
        with pytest.raises(PeakwardError, match="attention sinks"):
            CACHES[kind](model.shape)
        return
    whole = texts(model.shape.vocab_size, [n + STEPS for n in PROMPTS])
    found = through(CACHES[kind](model.shape), model, whole)
    for text, n, logits in zip(whole, PROMPTS, found, strict=True):
        assert close(logits, model(text[None])[0, n - 1 :], model.shape.n_layers)


def streaming(shape, n_recent, n_sinks, n_prompt):
    """Attention of the definition, over keys that are not rotated: the prompt attends to all before it,
    a later token to the sinks and the last tokens, by their places among these."""

    def attention(q, k, v, *, window, bias):
        k, v = for_every_head(q, k, v)
        found = torch.empty_like(q)
        for own in range(q.shape[2]):
            seen = list(range(own + 1))
            if own >= n_prompt and own + 1 > n_sinks + n_recent:
                seen = seen[:n_sinks] + seen[-n_recent:]
            cos, sin = decoder.rotation(shape, len(seen), q)
            keys = rotate(k[:, :, seen], cos, sin)
            query = rotate(q[:, :, own : own + 1], cos[-1:], sin[-1:])
            weights = (query @ keys.mT / math.sqrt(shape.head_dim)).softmax(-1)
            found[:, :, own] = (weights @ v[:, :, seen])[:, :, 0]
        return found

    return attention


def not_rotated(packed, cos, sin, n_heads, n_kv_heads):
    return packed.split((n_heads, n_kv_heads, n_kv_heads), dim=1)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("n_recent", "n_sinks"), [(5, 0), (4, 1), (3, 4), (1, 2)])
@torch.no_grad()
def test_a_ring_that_drops_tokens(n_recent, n_sinks, kv_heads, make_decoder):
    changes = {"n_kv_heads": kv_heads}
    model = make_decoder(changes)
    whole = texts(model.shape.vocab_size, [n + STEPS for n in PROMPTS])
    found = through(
        SlidingCache(model.shape, n_recent=n_recent, n_sinks=n_sinks, **ON_CPU), model, whole
    )
    in_full = 0
    for text, n, logits in zip(whole, PROMPTS, found, strict=True):
        oracle = make_decoder(
            changes, streaming(model.shape, n_recent, n_sinks, n), rotation=not_rotated
        )
        expected = oracle(text[None])[0, n - 1 :]
        # An angle of position p is off by p units of rounding, so that turning by two of them is too.
        assert float((logits - expected).norm() / expected.norm()) <= LONGEST * EPS64 * 8
        in_full += close(logits, model(text[None])[0, n - 1 :], model.shape.n_layers)
    assert in_full < len(PROMPTS), "nothing was dropped"


def of_stored(shape, stored, n_prompt):
    """Attention of the definition: the prompt to its keys and values as they are, later tokens to what a
    byte holds of them."""

    def attention(q, k, v, *, window, bias):
        exact = reference_attention(q, k, v, window=window, bias=bias)
        k, v = (dequantized(*quantized(each, stored), torch.float64) for each in (k, v))
        lossy = reference_attention(q, k, v, window=window, bias=bias)
        return torch.cat((exact[:, :, :n_prompt], lossy[:, :, n_prompt:]), dim=2)

    return attention


@pytest.mark.parametrize(
    "changes", [{}, {"n_kv_heads": 2, "window": 5}, {"n_kv_heads": 1}], ids=str
)
@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn], ids=str)
@torch.no_grad()
def test_a_byte_an_element(stored, changes, make_decoder):
    model = make_decoder(changes)
    whole = texts(model.shape.vocab_size, [n + STEPS for n in PROMPTS])
    cache = ContiguousCache(model.shape, capacity=LONGEST, stored=stored, **ON_CPU)
    exact = ContiguousCache(model.shape, capacity=LONGEST, **ON_CPU)
    # A byte for eight, and a scale of four bytes for each head of eight elements.
    assert cache.n_bytes == exact.n_bytes * (8 + 4) / 64
    found = through(cache, model, whole)
    for text, n, logits in zip(whole, PROMPTS, found, strict=True):
        oracle = make_decoder(changes, of_stored(model.shape, stored, n))
        expected = oracle(text[None])[0, n - 1 :]
        # Scales are rounded to fp32, alike in both; what is left are other sums.
        assert close(logits, expected, 4 * model.shape.n_layers)
        assert not close(logits, model(text[None])[0, n - 1 :], 10**6)


@torch.no_grad()
def test_a_released_row_takes_another_prompt(make_decoder):
    model = make_decoder({})
    first, second = texts(61, [9, 6])
    for make in CACHES.values():
        cache = make(model.shape)
        cache.prefill(model, 1, first.tolist())
        cache.release(1)
        assert close(
            cache.prefill(model, 1, second.tolist()),
            model(second[None])[:, -1],
            model.shape.n_layers,
        )


@torch.no_grad()
def test_too_small_caches_say_so(make_decoder):
    model = make_decoder({"positions": "learned"})
    contiguous = ContiguousCache(model.shape, capacity=6, **ON_CPU)
    with pytest.raises(PeakwardError, match="at most 6 tokens, got one of 7"):
        contiguous.prefill(model, 0, [1] * 7)
    with pytest.raises(PeakwardError, match="at least one token"):
        contiguous.prefill(model, 0, [])
    for ids, named in (([1, 61], "61"), ([-1, 3], "-1")):
        with pytest.raises(PeakwardError, match=f"expected tokens from 0 to 60, got {named}:"):
            contiguous.prefill(model, 0, ids)
    longer = ContiguousCache(model.shape, capacity=99, **ON_CPU)
    with pytest.raises(PeakwardError, match="at most 32 tokens, which tiny takes, got one of 33"):
        longer.prefill(model, 0, [1] * 33)  # The model has no more positions.
    for each in (longer, contiguous, SlidingCache(model.shape, n_recent=8, **ON_CPU)):
        said = r"at most 32 tokens, which tiny takes, got 3 and 30 to come: shorten the prompt"
        with pytest.raises(PeakwardError, match=said):
            each.fits([1] * 3, 30)
    with pytest.raises(
        PeakwardError, match=r"at most 6 tokens, got 3 and 4 .*: make a cache for 7"
    ):
        contiguous.fits([1] * 3, 4)
    pages = PagedCache(model.shape, n_pages=4, page_size=2, **ON_CPU)
    pages.prefill(model, 0, [1] * 6)
    with pytest.raises(PeakwardError, match="expected 3 free pages, got 1 of 4"):
        pages.prefill(model, 1, [2] * 5)
    pages.release(0)
    assert sorted(pages.pages.free) == [0, 1, 2, 3]  # The refused prompt has left none behind.
    found = pages.prefill(model, 1, [2] * 5)
    expected = model(torch.full((1, 5), 2))[:, -1]
    assert close(found, expected, model.shape.n_layers)


def test_a_prompt_is_computed_without_plans(make_decoder):
    """cuDNN's attention is planned anew for each length of a prompt."""
    model, seen = make_decoder({}), []
    model.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cuda.cudnn_sdp_enabled()))
    cache = ContiguousCache(model.shape, capacity=LONGEST, **ON_CPU)
    cache.prefill(model, 0, [1, 2, 3])
    assert seen == [False]
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("allowed", [True, False])
def test_the_last_of_several_threads_restores_what_was_allowed(allowed):
    settings = torch.backends.cuda
    settings.enable_cudnn_sdp(allowed)
    try:
        first, second = unplanned(), unplanned()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not settings.cudnn_sdp_enabled()
        second.__exit__(None, None, None)
        assert settings.cudnn_sdp_enabled() == allowed
    finally:
        settings.enable_cudnn_sdp(True)


@pytest.mark.parametrize("kind", ["contiguous", "pages"])
@pytest.mark.parametrize(
    "changes", [{}, {"n_kv_heads": 2}, {"n_kv_heads": 1, "window": 5}], ids=str
)
@torch.no_grad()
def test_by_the_kernel(kind, changes, make_decoder):
    """Interpreted where there is no GPU, in fp32: as close to fp64 as the mask of the model's own is."""
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact = make_decoder(changes)
    model = make_decoder(changes).float().to(device)
    whole = texts(model.shape.vocab_size, [n + STEPS for n in PROMPTS])
    expected = torch.cat(
        [exact(text[None])[0, n - 1 :] for text, n in zip(whole, PROMPTS, strict=True)]
    )
    errors = []
    for attention in ("as-model", "flash-decode"):
        on = {"n_rows": 3, "device": device, "dtype": torch.float32, "attention": attention}
        if kind == "contiguous":
            cache = ContiguousCache(model.shape, capacity=LONGEST, **on)
        else:
            cache = PagedCache(model.shape, n_pages=20, page_size=4, **on)
        found = torch.cat(through(cache, model, [text.to(device) for text in whole])).cpu()
        errors.append(float((found - expected).norm() / expected.norm()))
    own, of_kernel = errors
    assert 0 < of_kernel <= 2 * own


def test_the_kernel_has_no_bias(make_shape):
    with pytest.raises(PeakwardError, match="ALiBi"):
        ContiguousCache(
            make_shape(positions="alibi"), capacity=8, attention="flash-decode", **ON_CPU
        )
