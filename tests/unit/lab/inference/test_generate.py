"""Greedy text is what forward passes over all of it choose, whatever the cache and the company."""

import math

import pytest
import torch

from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.drafts import NGrams
from peakward.lab.inference.generate import generate
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache, SlidingCache
from peakward.lab.inference.speculation import Speculation
from peakward.lab.inference.storage import Storage
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling

PROMPTS = ([5, 9, 2, 7], [11], [3, 1, 4, 1, 5, 9, 2, 6, 5])
N_NEW = 20
ON_CPU = {"device": "cpu", "dtype": torch.float64}
CACHES = {
    "contiguous": lambda shape, n: ContiguousCache(shape, n_rows=n, capacity=32, **ON_CPU),
    "pages": lambda shape, n: PagedCache(shape, n_rows=n, n_pages=24, page_size=4, **ON_CPU),
    "ring": lambda shape, n: SlidingCache(shape, n_rows=n, n_recent=6, **ON_CPU),
}


@pytest.fixture
def model(make_decoder):
    return make_decoder({"window": 6, "n_kv_heads": 2})


@torch.no_grad()
def recomputed(model, prompt, n):
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def made(
    model, prompts=PROMPTS, kind="contiguous", n=N_NEW, ends=frozenset(), look_every=None, **by
):
    cache = CACHES[kind](model.shape, len(prompts))
    decoding = Decoding(model, cache, by=Sampling(**by), most_new_tokens=n, ends=ends)
    decoding.look_every = look_every or decoding.look_every
    return generate(decoding, prompts)


@pytest.mark.parametrize("kind", CACHES)
def test_greedy(kind, model):
    found = made(model, kind=kind)
    assert found.tokens == [recomputed(model, prompt, N_NEW) for prompt in PROMPTS]
    assert found.n_steps == N_NEW - 1
    assert found.prefill_s > 0 < found.decode_s


@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_greedy_in_bf16_differs_where_two_logits_are_within_the_noise(kind, model, make_decoder):
    """The noise is that of a forward pass in bf16; a cache may double it, as a reordered lever may."""
    narrow = make_decoder({"window": 6, "n_kv_heads": 2}).bfloat16()
    cache = CACHES[kind](model.shape, len(PROMPTS))
    cache.storage = Storage(*(each.bfloat16() for each in cache.storage.parts))
    found = generate(Decoding(narrow, cache, by=Sampling(), most_new_tokens=N_NEW), PROMPTS)
    n_other = 0
    for prompt, new in zip(PROMPTS, found.tokens, strict=True):
        whole = torch.tensor([[*prompt, *new[:-1]]])
        logits = model(whole)[0, len(prompt) - 1 :]
        noise = float((narrow(whole)[0, len(prompt) - 1 :] - logits).abs().max())
        best, taken = logits.amax(-1), logits.gather(1, torch.tensor(new)[:, None])[:, 0]
        n_other += int((taken < best).sum())
        assert float((best - taken).max()) <= 4 * noise
    assert n_other < 3 * N_NEW / 4  # Most tokens are the same.


def test_positions_are_those_in_reach(model):
    # Steps of the second prompt attend to 2, 3, 4, 5, 6 and then 6 positions, those of the others to 6
    # (of the first to 5 once).
    found = made(model, n=7)
    assert found.positions == pytest.approx(((5 + 6 * 5) + (2 + 3 + 4 + 5 + 6 + 6) + 6 * 6) / 6)


def test_an_end_cuts_its_row_alone_and_all_of_them_end_the_loop(model):
    whole = made(model).tokens
    ends = frozenset(row[2] for row in whole)
    cut = [row[: 1 + min(row.index(each) for each in ends & set(row))] for row in whole]
    found = made(model, ends=ends)
    assert found.tokens == cut
    assert found.n_steps == 2
    assert found.text_s == found.decode_s
    found = made(model, ends=ends, look_every=4)  # As on a GPU, which makes steps in vain.
    assert found.tokens == cut
    assert found.n_steps == 4
    assert found.text_s == pytest.approx(found.decode_s / 2)
    found = made(model, ends=ends, n=2)
    assert [len(row) for row in found.tokens] == [min(2, len(row)) for row in cut]


def test_seeds(model):
    first = made(model, temperature=1.0, seed=4).tokens
    assert made(model, temperature=1.0, seed=4).tokens == first
    assert made(model, temperature=1.0, seed=5).tokens != first
    assert made(model, temperature=1.0, top_k=1).tokens == made(model).tokens


WRONG = (
    {"temperature": -1.0},
    {"temperature": math.nan},
    {"temperature": math.inf},
    {"top_k": 0},
    {"top_k": -1},
    {"top_p": 2.0},
    {"top_p": 0.0},
    {"top_p": math.nan},
    {"seed": -1},
)


@pytest.mark.parametrize("by", WRONG, ids=str)
def test_a_choice_of_tokens_that_there_is_none(by, model):
    cache, (name,) = CACHES["contiguous"](model.shape, 1), by
    for kind, others in ((Decoding, {}), (Speculation, {"drafter": NGrams(), "n_guessed": 2})):
        with pytest.raises(PeakwardError, match=f"for {name}, got "):
            kind(
                model, cache, by=Sampling(**{"temperature": 1.0, **by}), most_new_tokens=4, **others
            )


@pytest.mark.parametrize("most", [0, -3])
def test_a_text_of_no_token(most, model):
    with pytest.raises(
        PeakwardError, match=f"at least one new token of a text, got {most}: ask for"
    ):
        made(model, n=most)


@pytest.mark.parametrize("kind", CACHES)
def test_rows_are_empty_again_behind_a_refusal(kind, model):
    cache = CACHES[kind](model.shape, 2)
    decoding = Decoding(model, cache, by=Sampling(), most_new_tokens=N_NEW)
    prompts = PROMPTS[:2]
    for refused, said in (
        ([[5, 9], [99]], "got 99: take the tokenizer"),
        ([[5, 9], []], "at least one token"),
        ([], "expected 1 to 2 prompts for the rows of the cache, got 0"),
        ([[1], [2], [3]], "got 3: give one for each row, or make a cache of as many rows"),
    ):
        with pytest.raises(PeakwardError, match=said):
            generate(decoding, refused)
        assert cache.lengths == [0, 0]
    assert generate(decoding, prompts).tokens == [
        recomputed(model, each, N_NEW) for each in prompts
    ]


def test_rows_are_empty_again_behind_one_that_got_no_pages(model):
    cache = PagedCache(model.shape, n_rows=2, n_pages=8, page_size=4, **ON_CPU)
    decoding = Decoding(model, cache, by=Sampling(), most_new_tokens=N_NEW)
    with pytest.raises(PeakwardError, match="expected room for 1 tokens and 20 to come"):
        generate(decoding, PROMPTS[:2])
    assert cache.lengths == [0, 0] and len(cache.pages.free) == 8
    assert generate(decoding, PROMPTS[:1]).tokens == [recomputed(model, PROMPTS[0], N_NEW)]


def test_a_cache_too_small_and_an_empty_prompt(model):
    with pytest.raises(PeakwardError, match="at most 32 tokens, got 9 and 24 to come"):
        made(model, n=24)
    with pytest.raises(PeakwardError, match="at least one token"):
        made(model, prompts=([1, 2], []))
