"""Every request of a queue gets the text that it gets alone, and rows are used as they come free."""

import pytest
import torch

from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.generate import generate
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.inference.serving import Request, serve
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling

ON_CPU = {"device": "cpu", "dtype": torch.float64}
REQUESTS = [
    Request(ids, n)
    for ids, n in (
        ([5, 9, 2, 7], 20),
        ([11], 3),
        ([3, 1, 4, 1, 5, 9, 2, 6, 5], 2),
        ([5, 9, 2, 7, 8], 30),
        ([2] * 6, 2),
        ([5, 9, 2, 7, 8, 1], 9),
        ([1, 2], 11),
        ([4], 1),
    )
]
CACHES = {
    "pages": lambda shape: PagedCache(shape, n_rows=3, n_pages=30, page_size=4, **ON_CPU),
    "few pages": lambda shape: PagedCache(shape, n_rows=3, n_pages=10, page_size=4, **ON_CPU),
    "contiguous": lambda shape: ContiguousCache(shape, n_rows=3, capacity=40, **ON_CPU),
}


@pytest.fixture
def model(make_decoder):
    return make_decoder({"n_kv_heads": 2, "max_seq_len": 80})


def greedy(model, request, ends):
    cache = ContiguousCache(model.shape, n_rows=1, capacity=60, **ON_CPU)
    n = request.max_new_tokens
    decoding = Decoding(model, cache, by=Sampling(), most_new_tokens=n, ends=ends)
    return generate(decoding, [request.ids]).tokens[0]


def served(model, cache, batching, requests=REQUESTS, ends=frozenset(), **by):
    decoding = Decoding(model, cache, by=Sampling(**by), most_new_tokens=30, ends=ends)
    return serve(decoding, requests, batching)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("batching", ["static", "continuous"])
@pytest.mark.parametrize("ending", [False, True])
def test_texts_are_those_of_each_request_alone(kind, batching, ending, model):
    ends = frozenset((greedy(model, REQUESTS[3], frozenset())[4],) if ending else ())
    cache = CACHES[kind](model.shape)
    found = served(model, cache, batching, ends=ends)
    assert found.tokens == [greedy(model, each, ends) for each in REQUESTS]
    assert (len(found.tokens[3]) <= 5) == ending
    assert cache.lengths == [0, 0, 0]
    if isinstance(cache, PagedCache):
        assert len(cache.pages.free) == len(cache.pages.n_users)
    for first, done in zip(found.first_token_s, found.done_s, strict=True):
        assert 0 < first <= done <= found.serve_s


def test_a_row_that_comes_free_is_used(model):
    """The steps of three rows, counted by hand: a row's next request begins when its last has ended."""
    found = {
        batching: served(model, CACHES["pages"](model.shape), batching)
        for batching in ("static", "continuous")
    }
    # Batches of (20, 3, 2), (30, 2, 9), (11, 1): each takes as many steps as its longest has tokens behind
    # the first.
    assert found["static"].n_steps == 19 + 29 + 10
    # Rows: 20 then 1; 3 then 2, 9, 11; 2 then 30, which ends last.
    assert found["continuous"].n_steps == 1 + 29
    n_decoded = sum(each.max_new_tokens - 1 for each in REQUESTS)
    for each in found.values():
        assert each.row_use == pytest.approx(n_decoded / (3 * each.n_steps))
    order = [found["continuous"].first_token_s[each] for each in range(len(REQUESTS))]
    assert order == sorted(order)


def test_a_text_of_one_token_holds_no_row(model):
    """Beside a long text the others take no step more."""
    long, short, one = Request([5, 9], 20), Request([4, 1], 9), Request([4], 1)
    found = served(model, CACHES["pages"](model.shape), "continuous", [long, one, one, one, short])
    assert found.n_steps == 19
    assert served(model, CACHES["pages"](model.shape), "static", [one] * 4).n_steps == 0


def test_drawn_texts_do_not_depend_on_the_batching(model):
    static, continuous, alike = (
        served(
            model, CACHES["pages"](model.shape), batching, requests, temperature=1.0, seed=7
        ).tokens
        for requests, batching in (
            (REQUESTS, "static"),
            (REQUESTS, "continuous"),
            ([REQUESTS[0]] * 3, "continuous"),
        )
    )
    assert static == continuous
    assert alike[0] == static[0]
    assert len({tuple(each) for each in alike}) == 3


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([Request([1], 2), Request([1] * 10, 7)], "at most 16 tokens, got 10 and 7 to come"),
        ([Request([1], 31)], "at most 30 new tokens, got one of 31"),
        ([], "at least one token each"),
        ([Request([1], 0)], "at least one token each"),
        ([Request([1], 2), Request([], 2)], "an empty one"),
        ([Request([1], 2), Request([61], 2)], "expected tokens from 0 to 60, got 61"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_served_is_refused(requests, said, model):
    small = PagedCache(model.shape, n_rows=2, n_pages=4, page_size=4, **ON_CPU)
    with pytest.raises(PeakwardError, match=said):
        served(model, small, "continuous", requests)
