"""Caches that drop tokens or bits say, token by token, what their definition says in fp64."""

import math

import pytest
import torch

from peakward.kernels.ops.attention.reference import attention as reference_attention
from peakward.kernels.ops.attention.reference import for_every_head
from peakward.kernels.ops.decode_attention.reference import packed, unpacked
from peakward.lab.inference.heavy_hitters import HeavyHitterCache
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache, SlidingCache
from peakward.records.errors import PeakwardError

from .test_sequences import LONGEST, ON_CPU, PROMPTS, STEPS, close, texts, through

HEADS = ({}, {"n_kv_heads": 2}, {"n_kv_heads": 1})


def compared(make_decoder, changes, make_cache, oracle_of):
    """Holds a cache to attention of the definition; what differs from full attention is counted."""
    model = make_decoder(changes)
    whole = texts(model.shape.vocab_size, [n + STEPS for n in PROMPTS])
    found, in_full = through(make_cache(model.shape), model, whole), 0
    for text, n, logits in zip(whole, PROMPTS, found, strict=True):
        expected = make_decoder(changes, oracle_of(n))(text[None])[0, n - 1 :]
        assert close(logits, expected, 4 * model.shape.n_layers)
        in_full += close(logits, model(text[None])[0, n - 1 :], 4 * model.shape.n_layers)
    return in_full


def seen_by(seen_of):
    """Attention whose queries see the keys that `seen_of(own)` lists."""

    def attention(q, k, v, *, window, bias):
        n = q.shape[2]
        keys, values = for_every_head(q, k, v)
        hidden = torch.full((n, n), -math.inf, dtype=q.dtype)
        for own in range(n):
            hidden[own, seen_of(own)] = 0
        scores = q @ keys.mT / math.sqrt(q.shape[-1]) + hidden
        return (scores if bias is None else scores + bias).softmax(-1) @ values

    return attention


@pytest.mark.parametrize(
    "changes", [*HEADS, {"positions": "learned"}, {"positions": "alibi"}], ids=str
)
@pytest.mark.parametrize(("n_global", "n_recent"), [(1, 4), (3, 5), (2, LONGEST)])
@torch.no_grad()
def test_a_window_with_global_tokens(changes, n_global, n_recent, make_decoder):
    def oracle(n_prompt):
        def seen(own):
            every = list(range(own + 1))
            if own < n_prompt or own + 1 <= n_global + n_recent:
                return every
            return every[:n_global] + every[-n_recent:]

        return seen_by(seen)

    in_full = compared(
        make_decoder,
        changes,
        lambda shape: SlidingCache(shape, n_recent=n_recent, n_global=n_global, **ON_CPU),
        oracle,
    )
    assert (in_full == len(PROMPTS)) == (n_recent == LONGEST)


def heavy_hitters(n_heavy, n_recent, n_prompt):
    """H2O by its definition, over lists of what each head of keys has kept."""

    def attention(q, k, v, *, window, bias):
        _, heads, n, head_dim = q.shape
        kv_heads = k.shape[1]
        out = torch.empty_like(q)
        for head in range(kv_heads):
            group = range(head * heads // kv_heads, (head + 1) * heads // kv_heads)
            sums, kept = [0.0] * n, []
            for own in range(n):
                kept.append(own)
                if own >= n_prompt:
                    drop(kept, sums, own)
                for each in group:
                    weights = (k[0, head, kept] @ q[0, each, own] / math.sqrt(head_dim)).softmax(-1)
                    out[0, each, own] = weights @ v[0, head, kept]
                    for at, weight in zip(kept, weights.tolist(), strict=True):
                        sums[at] += weight
                if own == n_prompt - 1:
                    while len(kept) > n_heavy + n_recent:
                        drop(kept, sums, own)
        return out

    def drop(kept, sums, own):
        """Drops the least of those that are not recent, where there are too many."""
        if len(kept) > n_heavy + n_recent:
            kept.remove(min((at for at in kept if at <= own - n_recent), key=lambda at: sums[at]))

    return attention


@pytest.mark.parametrize("changes", HEADS, ids=str)
@pytest.mark.parametrize(("n_heavy", "n_recent"), [(3, 2), (1, 4), (LONGEST - 2, 2)])
@torch.no_grad()
def test_heavy_hitters(changes, n_heavy, n_recent, make_decoder):
    in_full = compared(
        make_decoder,
        changes,
        lambda shape: HeavyHitterCache(shape, n_heavy=n_heavy, n_recent=n_recent, **ON_CPU),
        lambda n_prompt: heavy_hitters(n_heavy, n_recent, n_prompt),
    )
    assert (in_full == len(PROMPTS)) == (n_heavy > LONGEST // 2)


@torch.no_grad()
def test_a_row_of_heavy_hitters_is_emptied_or_stays(make_decoder):
    model = make_decoder({})
    cache = HeavyHitterCache(model.shape, n_heavy=2, n_recent=2, **ON_CPU)
    first, second = texts(61, [9, 6])
    cache.prefill(model, 1, first.tolist())
    cache.trim(1, 9)
    with pytest.raises(ValueError, match="8 of 9 tokens to keep"):
        cache.trim(1, 8)
    cache.release(1)
    assert (cache.places == -1).all() and not cache.sums.any()
    found = cache.prefill(model, 1, second.tolist())
    assert close(found, model(second[None])[:, -1], model.shape.n_layers)


@pytest.mark.parametrize(
    "changes", [{}, {"n_kv_heads": 2, "window": 5}, {"n_kv_heads": 1}], ids=str
)
@torch.no_grad()
def test_a_cache_in_int4(changes, make_decoder):
    def oracle(n_prompt):
        def attention(q, k, v, *, window, bias):
            exact = reference_attention(q, k, v, window=window, bias=bias)
            k, v = (unpacked(*packed(each), torch.float64) for each in (k, v))
            lossy = reference_attention(q, k, v, window=window, bias=bias)
            return torch.cat((exact[:, :, :n_prompt], lossy[:, :, n_prompt:]), dim=2)

        return attention

    def cache(shape):
        found = ContiguousCache(shape, capacity=LONGEST, stored=torch.uint8, **ON_CPU)
        exact = ContiguousCache(shape, capacity=LONGEST, **ON_CPU)
        # Four bytes for eight elements, and four for their step and least, of 64.
        assert found.n_bytes == exact.n_bytes * (4 + 4) / 64
        return found

    assert compared(make_decoder, changes, cache, oracle) == 0


def test_models_that_a_cache_does_not_serve(make_shape):
    with pytest.raises(PeakwardError, match=r"heavy hitters, got .* with a window"):
        HeavyHitterCache(make_shape(window=4), n_heavy=1, n_recent=1, **ON_CPU)
    with pytest.raises(PeakwardError, match=r"heavy hitters, got .* with ALiBi"):
        HeavyHitterCache(make_shape(positions="alibi"), n_heavy=1, n_recent=1, **ON_CPU)
    with pytest.raises(PeakwardError, match=r"global tokens, got .* with one of 4"):
        SlidingCache(make_shape(window=4), n_recent=4, n_global=1, **ON_CPU)
    with pytest.raises(PeakwardError, match="got 1 and 2: take one kind"):
        SlidingCache(make_shape(), n_recent=4, n_sinks=1, n_global=2, **ON_CPU)
    with pytest.raises(PeakwardError, match=r"that 4 divides .* got 7: take a cache in int8"):
        odd = make_shape(head_dim=7, positions="learned")
        ContiguousCache(odd, capacity=4, stored=torch.uint8, **ON_CPU)


@pytest.mark.parametrize(
    ("kind", "sizes", "said"),
    [
        (PagedCache, {"n_pages": 4, "page_size": 0}, "for page_size, got 0"),
        (SlidingCache, {"n_recent": 0}, "for n_recent, got 0"),
        (SlidingCache, {"n_recent": 4, "n_sinks": -1}, "for n_sinks, got -1"),
        (SlidingCache, {"n_recent": 4, "n_global": -1}, "for n_global, got -1"),
        (HeavyHitterCache, {"n_heavy": 0, "n_recent": 0}, "for n_recent, got 0"),
        (HeavyHitterCache, {"n_heavy": -1, "n_recent": 4}, "for n_heavy, got -1"),
        (ContiguousCache, {"capacity": 4, "stored": torch.int16}, "got torch.int16: take one of"),
    ],
)
def test_caches_of_no_size_are_not_made(kind, sizes, said, make_shape):
    with pytest.raises(PeakwardError, match=said):
        kind(make_shape(), **sizes, **ON_CPU)
