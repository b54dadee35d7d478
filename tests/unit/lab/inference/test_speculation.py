"""Speculation gives the greedy text, in fewer passes where the text repeats itself."""

import pytest
import torch

from peakward.lab.inference.generate import generate
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache, SlidingCache
from peakward.lab.inference.speculation import guess, speculate
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling

ON_CPU = {"n_rows": 1, "device": "cpu", "dtype": torch.float64}
CACHES = {
    "contiguous": lambda shape: ContiguousCache(shape, capacity=80, **ON_CPU),
    "pages": lambda shape: PagedCache(shape, n_pages=20, page_size=4, **ON_CPU),
}
N_NEW = 40
PROMPTS = ([7], [5, 9, 2, 5, 9, 2, 5, 9], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])


@pytest.mark.parametrize(
    ("ids", "n", "found"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, [4, 1]),  # After 1, 2, 3.
        ([9, 3, 5, 2, 3, 7, 3], 4, [7, 3]),  # The latest 3 before.
        ([2, 3, 7, 9, 3, 8, 2, 3], 1, [7]),  # A longer equal end counts before a later one.
        ([1, 2, 3], 5, []),
        ([4, 4], 3, [4]),
        ([4], 3, []),
        ([1, 2, 1], 0, []),
    ],
)
def test_guesses(ids, n, found):
    assert guess(ids, n) == found


def greedy(model, prompt, ends=frozenset()):
    made = generate(
        model,
        [prompt],
        CACHES["contiguous"](model.shape),
        by=Sampling(),
        max_new_tokens=N_NEW,
        ends=ends,
    )
    return made.tokens[0]


def speculated(model, prompt, kind="contiguous", n_guessed=4, ends=frozenset(), n=N_NEW):
    cache = CACHES[kind](model.shape)
    made = speculate(model, prompt, cache, n_guessed=n_guessed, max_new_tokens=n, ends=ends)
    return made, cache


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("n_guessed", [0, 1, 4, 12])
def test_the_text_is_the_greedy_one(kind, n_guessed, make_decoder):
    model = make_decoder({"n_kv_heads": 2, "max_seq_len": 80})
    kept = 0
    for prompt in PROMPTS:
        found, cache = speculated(model, prompt, kind, n_guessed)
        assert found.tokens == [greedy(model, prompt)]
        assert found.n_steps + found.n_kept == N_NEW - 1
        assert found.n_kept <= found.n_guessed <= n_guessed * found.n_steps
        assert cache.lengths == [len(prompt) + N_NEW - 1]
        kept += found.n_kept
    assert (kept > 10) == (n_guessed > 0)  # A random model comes to repeat itself.


def test_an_end_within_a_guess_ends_the_text(make_decoder):
    model = make_decoder({"n_kv_heads": 2, "max_seq_len": 80})
    for prompt in PROMPTS:
        for end in set(greedy(model, prompt)):
            found, _ = speculated(model, prompt, ends=frozenset((end,)))
            assert found.tokens == [greedy(model, prompt, frozenset((end,)))]
            assert found.n_steps + found.n_kept >= len(found.tokens[0]) - 1


def test_pages_that_a_wrong_guess_took_are_free_again(make_decoder):
    model = make_decoder({"max_seq_len": 80})
    found, cache = speculated(model, PROMPTS[2], "pages", n_guessed=12, n=9)
    assert found.n_kept < found.n_guessed
    assert len(cache.tables[0]) == -(-cache.lengths[0] // 4)
    assert len(cache.pages.free) == 20 - len(cache.tables[0])


def test_caches_that_do_not_serve(make_decoder):
    model = make_decoder({"window": 6, "max_seq_len": 80})
    ring = SlidingCache(model.shape, n_recent=6, **ON_CPU)
    with pytest.raises(ValueError, match="one token behind others in a ring"):
        speculate(model, [4, 4, 4], ring, n_guessed=3, max_new_tokens=9)
    small = ContiguousCache(model.shape, capacity=6, **ON_CPU)
    with pytest.raises(PeakwardError, match="at most 6 tokens"):
        speculate(model, [4, 4, 4], small, n_guessed=3, max_new_tokens=9)
