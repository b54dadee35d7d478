"""Speculation gives the greedy text in fewer passes, and draws with the model's distribution."""

from collections import deque

import pytest
import torch

from peakward.lab.inference.decoding import Decoding, Looks
from peakward.lab.inference.drafts import Guess, ModelDraft, NGrams, looked_up, without_blocks
from peakward.lab.inference.generate import generate
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sampling import drawn, first_above, probabilities
from peakward.lab.inference.sequences import ContiguousCache, SlidingCache
from peakward.lab.inference.serving import Request, serve
from peakward.lab.inference.speculation import Speculation, judged
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling

ON_CPU = {"device": "cpu", "dtype": torch.float64}
CACHES = {
    "contiguous": lambda shape, n: ContiguousCache(shape, n_rows=n, capacity=90, **ON_CPU),
    "pages": lambda shape, n: PagedCache(shape, n_rows=n, n_pages=60, page_size=4, **ON_CPU),
}
N_NEW = 40
PROMPTS = ([7], [5, 9, 2, 5, 9, 2, 5, 9], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
DRAFTERS = ("ngrams", "itself", "fewer blocks", "another")


@pytest.mark.parametrize(
    ("ids", "k", "found"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, [4, 1]),  # After 1, 2, 3.
        (
            [9, 3, 5, 2, 3, 7, 3],
            3,
            [7, 3, 7],
        ),  # The latest 3 before; what follows ends, and goes on.
        ([2, 3, 7, 9, 3, 8, 2, 3], 1, [7]),  # A longer equal end counts before a later one.
        ([1, 2, 3], 2, [3, 3]),  # Nothing is equal.
        ([4, 4], 3, [4, 4, 4]),
        ([4], 2, [4, 4]),
        ([1, 2, 1], 4, [2, 1, 2, 1]),
    ],
)
def test_words_of_the_text_itself(ids, k, found):
    """Whatever stands behind the texts, and in other rows."""
    other = [6] * 12
    rows = torch.tensor([ids + ids[-1:] * (12 - len(ids)), other, ids + [8] * (12 - len(ids))])
    n = torch.tensor([len(ids), 12, len(ids)])
    assert looked_up(rows, n, k).tolist() == [found, other[:k], found]


def make_drafter(kind, model, make_decoder, n_rows):
    if kind == "ngrams":
        return NGrams()
    draft = model
    if kind == "fewer blocks":
        draft = without_blocks(model, (1,))
        assert draft.shape.n_layers == 1 and len(model.blocks) == 2
        assert draft.blocks[0] is model.blocks[0]
    elif kind == "another":
        draft = make_decoder({"d_model": 16, "n_layers": 1, "max_seq_len": 90})
    return ModelDraft(draft, CACHES["contiguous"](draft.shape, n_rows))


@pytest.fixture
def model(make_decoder):
    return make_decoder({"n_kv_heads": 2, "max_seq_len": 90})


def plain(model, prompts=PROMPTS, n=N_NEW, ends=frozenset(), **by):
    cache = CACHES["contiguous"](model.shape, len(prompts))
    decoding = Decoding(model, cache, by=Sampling(**by), most_new_tokens=n, ends=ends)
    return generate(decoding, prompts).tokens


def speculated(
    model, drafter, prompts=PROMPTS, kind="contiguous", k=4, n=N_NEW, ends=frozenset(), **by
):
    cache = CACHES[kind](model.shape, len(prompts))
    return generate(
        Speculation(
            model, cache, drafter, n_guessed=k, by=Sampling(**by), most_new_tokens=n, ends=ends
        ),
        prompts,
    )


@pytest.mark.parametrize(("kind", "k"), [("contiguous", 1), ("contiguous", 12), ("pages", 4)])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_text_is_the_greedy_one(drafter, k, kind, model, make_decoder):
    found = speculated(model, make_drafter(drafter, model, make_decoder, 3), kind=kind, k=k)
    assert found.tokens == plain(model)
    counts = found.counts
    n_rounds = sum(counts.accepted)
    # A round makes one token more than are kept of its guesses.
    assert n_rounds + counts.n_kept == 3 * (N_NEW - 1)
    assert counts.n_kept <= counts.n_guessed <= k * n_rounds
    if drafter == "itself":
        assert counts.n_kept == counts.n_guessed
        assert found.n_steps == -(-(N_NEW - 1) // (k + 1))
    elif drafter == "ngrams":
        assert counts.n_kept > 10  # A random model comes to repeat itself.


@torch.inference_mode()
@pytest.mark.parametrize("n", [1, 2, 23])
@pytest.mark.parametrize("k", [1, 4])
def test_a_round_that_is_made_before_the_end_is_known_is_no_part_of_the_text(
    k, n, model, monkeypatch
):
    """As on a GPU, where the host knows of an end one look later."""

    def one_behind(looks, decoding):
        looks._decoding, looks._behind, looks._asked = decoding, 1, deque()

    monkeypatch.setattr(Looks, "__init__", one_behind)
    cache = ContiguousCache(model.shape, n_rows=1, capacity=64, **ON_CPU)
    draft = ModelDraft(model, ContiguousCache(model.shape, n_rows=1, capacity=64, **ON_CPU))
    loop = Speculation(model, cache, draft, n_guessed=k, by=Sampling(), most_new_tokens=n)
    found = generate(loop, PROMPTS[:1])
    n_rounds = sum(found.counts.accepted)
    assert found.n_steps == n_rounds + (1 if n > 2 else 0)
    assert found.text_s * found.n_steps == pytest.approx(found.decode_s * n_rounds)


def test_a_text_that_comes_later_is_guessed_as_well(model, make_decoder):
    """The steps before it have left nothing in its row of the draft."""
    drafter = make_drafter("itself", model, make_decoder, 2)
    cache = CACHES["contiguous"](model.shape, 2)
    decoding = Speculation(model, cache, drafter, n_guessed=4, by=Sampling(), most_new_tokens=21)
    decoding.admit(0, PROMPTS[1], 21, 0)
    decoding.run(2)
    decoding.admit(1, PROMPTS[2], 21, 1)
    alone, n = CACHES["contiguous"](model.shape, 1), len(PROMPTS[2])
    alone.prefill(model, 0, PROMPTS[2])
    assert torch.equal(drafter.cache.storage.keys[:, 1, :, :n], alone.storage.keys[:, 0, :, :n])
    decoding.run(4)
    counts = decoding.counts()
    assert counts.n_kept == counts.n_guessed == 2 * 16


@pytest.mark.parametrize("drafter", ["ngrams", "itself"])
def test_an_end_within_a_guess_ends_the_text(drafter, model, make_decoder):
    for end in {each for row in plain(model) for each in row[:3]}:
        ends = frozenset((end,))
        found = speculated(model, make_drafter(drafter, model, make_decoder, 3), ends=ends)
        assert found.tokens == plain(model, ends=ends)
        if drafter == "itself":  # No guess behind the end counts as lost.
            assert found.counts.n_kept == found.counts.n_guessed


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_queue_with_guesses(drafter, model, make_decoder):
    """Rows come free at other times than without, and every text is its own."""
    requests = [Request(ids, n) for ids in PROMPTS for n in (9, 30, 1)]
    cache = CACHES["pages"](model.shape, 2)
    drafts = make_drafter(drafter, model, make_decoder, 2)
    speculation = Speculation(model, cache, drafts, n_guessed=3, by=Sampling(), most_new_tokens=30)
    found = serve(speculation, requests)
    assert found.tokens == [plain(model, [each.ids], each.max_new_tokens)[0] for each in requests]
    assert len(cache.pages.free) == 60


@torch.inference_mode()
def test_a_text_is_taken_where_the_draft_has_room_too(model):
    """Else nobody takes it, and both rows stay empty."""
    cache = CACHES["contiguous"](model.shape, 2)
    of_draft = PagedCache(model.shape, n_rows=2, n_pages=8, page_size=4, **ON_CPU)
    drafter = ModelDraft(model, of_draft)
    decoding = Speculation(model, cache, drafter, n_guessed=2, by=Sampling(), most_new_tokens=40)
    assert decoding.fits([1, 2, 3], 20)
    decoding.admit(0, [1, 2, 3], 20, 0)
    assert not decoding.fits([4, 5, 6], 20)
    with pytest.raises(PeakwardError, match="expected room for 3 tokens and 20 to come"):
        decoding.admit(1, [4, 5, 6], 20, 1)
    with pytest.raises(PeakwardError, match="at most 32 tokens, got 3 and 32 to come"):
        decoding.admit(1, [4, 5, 6], 30, 1)
    assert decoding.numbers == [0, None]
    assert cache.lengths[1] == of_draft.lengths[1] == 0
    decoding.release(0)
    decoding.admit(1, [4, 5, 6], 20, 1)
    assert decoding.numbers == [None, 1]


def test_a_queue_waits_for_the_drafts_room(model):
    requests = [Request(ids, 9) for ids in PROMPTS]
    of_draft = PagedCache(model.shape, n_rows=3, n_pages=8, page_size=4, **ON_CPU)
    speculation = Speculation(
        model,
        CACHES["contiguous"](model.shape, 3),
        ModelDraft(model, of_draft),
        n_guessed=3,
        by=Sampling(),
        most_new_tokens=9,
    )
    assert serve(speculation, requests).tokens == plain(model, n=9)
    assert len(of_draft.pages.free) == 8


def test_a_draft_of_fewer_words_takes_a_prompt_of_all(model, make_decoder):
    draft = make_decoder({"vocab_size": 55, "max_seq_len": 90})
    drafter = ModelDraft(draft, CACHES["contiguous"](draft.shape, 3), n_tokens=50)
    prompts = [[60, 3], *PROMPTS[:2]]
    assert speculated(model, drafter, prompts).tokens == plain(model, prompts)


def test_a_drawn_text_depends_on_its_seed_and_place_alone(model, make_decoder):
    def drawn_texts(prompts, kind="contiguous", seed=5):
        drafter = make_drafter("another", model, make_decoder, len(prompts))
        return speculated(
            model, drafter, prompts, kind, temperature=1.0, top_k=30, seed=seed
        ).tokens

    texts = drawn_texts(PROMPTS)
    assert drawn_texts(PROMPTS, "pages") == texts
    assert drawn_texts(PROMPTS[:2]) == texts[:2]
    assert drawn_texts(PROMPTS, seed=6) != texts


@pytest.mark.parametrize("drafter", ["another", "ngrams"])
def test_a_drawn_text_of_fewer_tokens_is_the_beginning_of_a_longer_one(
    drafter, model, make_decoder
):
    def drawn_texts(n):
        drafts = make_drafter(drafter, model, make_decoder, 3)
        return speculated(model, drafts, n=n, temperature=1.0, seed=5).tokens

    assert drawn_texts(12) == [each[:12] for each in drawn_texts(30)]


N_TEXTS, VOCAB = 60_000, 5
CHI_SQUARED = 55.0
"""Of 24 degrees of freedom, exceeded by a right rule once in 3,000 seeds; the seed is fixed."""
LOGITS = torch.tensor(
    [
        [1.0, 0.2, -0.7, 0.4, -2.0],
        [0.0, 1.3, 0.3, -1.0, 0.6],
        [0.5, -0.5, 1.0, 0.0, -0.3],
        [-1.0, 0.8, 0.1, 0.9, 0.0],
        [0.7, 0.7, -0.2, -0.6, 0.3],
    ],
    dtype=torch.float64,
)
"""A model of one token's memory: the logits behind each token."""
DRAFT = LOGITS.flip(1) * 0.8 + LOGITS * 0.5


AS_THEY_ARE = Sampling(temperature=1.0)


def pairs_drawn(rule, drawing=True, by=AS_THEY_ARE):
    """The pairs that follow token 0 in texts of two guessed tokens, counted: what a round keeps, and where
    that is one token, what the next round makes first."""
    p = probabilities(LOGITS, by)
    draws = torch.from_numpy(drawn(1, 2, 12 * N_TEXTS).reshape(12, N_TEXTS))
    first = torch.zeros(N_TEXTS, dtype=torch.int64)

    def round_behind(token, draws):
        q = probabilities(DRAFT, by) if drawing else None
        guessed, likely, at = [], [], token
        for draw in draws[:2]:
            at = first_above(q[at], draw) if drawing else (at + 1) % VOCAB
            likely.append(q[guessed[-1] if guessed else token] if drawing else None)
            guessed.append(at)
        guess = Guess(torch.stack(guessed, 1), torch.stack(likely, 1) if drawing else None)
        behind = torch.stack((p[token], p[guessed[0]], p[guessed[1]]), dim=1)
        n_right, last = rule(behind, guess, draws[2:4].T, draws[[4, 5, 0]].T)
        return torch.where(n_right > 0, guessed[0], last), torch.where(
            n_right > 1, guessed[1], torch.where(n_right == 1, last, -1)
        )

    one, two = round_behind(first, draws[:6])
    again, _ = round_behind(one, draws[6:])
    two = torch.where(two < 0, again, two)
    return (one * VOCAB + two).bincount(minlength=VOCAB**2), p


def statistic(rule, **how):
    """Pearson's, of pairs by the rule against the model's own probabilities."""
    counts, p = pairs_drawn(rule, **how)
    due = (p[0][:, None] * p).flatten() * N_TEXTS
    possible = due > 0
    if counts[~possible].any():
        return float("inf")
    return float(((counts[possible] - due[possible]) ** 2 / due[possible]).sum())


RULES = {
    "as they are": AS_THEY_ARE,
    "cut": Sampling(temperature=0.8, top_k=4, top_p=0.95),
}


@pytest.mark.parametrize("by", RULES.values(), ids=RULES)
@pytest.mark.parametrize("drawing", [True, False], ids=["drawn", "looked up"])
def test_drawn_texts_have_the_distribution_of_the_model(by, drawing):
    assert statistic(judged, by=by, drawing=drawing) < CHI_SQUARED


def from_p(p, guess, accept, last):
    """Draws what stands in the place of a refused token by p, which counts what was accepted twice."""
    n_right, _ = judged(p, guess, accept, last)
    row = torch.arange(len(p))
    return n_right, first_above(p[row, n_right], last[row, n_right])


def by_p_alone(p, guess, accept, last):
    """Accepts with probability p(x), as if no q had drawn x, and draws what is refused as if one had."""
    right = accept < p[:, :2].gather(2, guess.tokens[..., None])[..., 0]
    return judged(p, guess, torch.where(right, 0.0, 1 - 2**-53), last)


def the_likeliest(p, guess, accept, last):
    """Accepts what the model finds likeliest, and nothing else."""
    right = guess.tokens == p[:, :2].argmax(-1)
    n_right = right.long().cumprod(1).sum(1)
    row = torch.arange(len(p))
    return n_right, first_above(p[row, n_right], last[row, n_right])


def one_more(p, guess, accept, last):
    """Keeps a token too many now and then: whatever stands behind an accepted one."""
    n_right, token = judged(p, guess, accept, last)
    return torch.where((n_right == 1) & (accept[:, 1] > 0.9), 2, n_right), token


@pytest.mark.parametrize(
    "wrong",
    [from_p, by_p_alone, the_likeliest, one_more],
    ids=lambda each: each.__name__,
)
def test_a_wrong_rule_would_be_found(wrong):
    assert statistic(wrong) > 2 * CHI_SQUARED


def bonus_statistic(rule):
    """Pearson's, of the token behind two kept ones against the model's probabilities behind the second."""
    p = probabilities(LOGITS, AS_THEY_ARE)
    q = probabilities(DRAFT, AS_THEY_ARE)
    draws = torch.from_numpy(drawn(3, 4, 7 * N_TEXTS).reshape(7, N_TEXTS))
    one = first_above(q[torch.zeros(N_TEXTS, dtype=torch.int64)], draws[0])
    two = first_above(q[one], draws[1])
    guess = Guess(torch.stack((one, two), 1), torch.stack((q[one * 0], q[one]), 1))
    n_right, last = rule(
        torch.stack((p[one * 0], p[one], p[two]), 1), guess, draws[2:4].T, draws[4:].T
    )
    kept = n_right == 2
    counts = (two * VOCAB + last)[kept].bincount(minlength=VOCAB**2).view(VOCAB, VOCAB)
    due = counts.sum(1, keepdim=True) * p
    return float(((counts - due) ** 2 / due).sum())


def behind_the_first(p, guess, accept, last):
    """Takes the token behind all that were kept by the probabilities behind one too few."""
    return judged(torch.cat((p[:, :2], p[:, 1:2]), dim=1), guess, accept, last)


def test_the_token_behind_all_that_were_kept():
    assert bonus_statistic(judged) < CHI_SQUARED
    assert bonus_statistic(behind_the_first) > 2 * CHI_SQUARED


@pytest.mark.parametrize("drafter", ["another", "ngrams"])
def test_the_whole_loop_draws_as_without_guesses(drafter, make_decoder):
    """The tokens of 300 texts with guesses and of as many without, over the model's 61 words in six
    groups: a chi-squared of two samples."""
    model = make_decoder({"n_layers": 1, "d_model": 16, "max_seq_len": 90})
    n = 300
    prompts = [[3, 5, 3]] * n
    with_guesses = speculated(
        model,
        make_drafter(drafter, model, make_decoder, n),
        prompts,
        k=2,
        n=4,
        temperature=1.0,
        seed=2,
    ).tokens
    without = plain(model, prompts, 4, temperature=1.0, seed=1)
    for place in (1, 2, 3):
        a, b = (
            torch.tensor([each[place] // 11 for each in texts]).bincount(minlength=6).double()
            for texts in (with_guesses, without)
        )
        assert (
            float(((a - b) ** 2 / (a + b)).sum()) < 25.7
        )  # Once in 10,000 of 5 degrees of freedom.


def test_what_does_not_serve(make_decoder):
    model = make_decoder({"window": 6, "max_seq_len": 90})
    ring = SlidingCache(model.shape, n_rows=1, n_recent=6, **ON_CPU)
    by = {"by": Sampling(), "most_new_tokens": 9}
    with pytest.raises(PeakwardError, match="keeps all tokens for guesses, got a SlidingCache"):
        Speculation(model, ring, NGrams(), n_guessed=3, **by)
    with pytest.raises(PeakwardError, match="keeps all tokens"):
        ModelDraft(model, ring)
    cache = CACHES["contiguous"](model.shape, 1)
    other = make_decoder({"vocab_size": 60})
    draft = ModelDraft(other, CACHES["contiguous"](other.shape, 1))
    with pytest.raises(PeakwardError, match="the model's vocabulary, 61 tokens, got one of 60"):
        Speculation(model, cache, draft, n_guessed=3, **by)
    small = ContiguousCache(model.shape, n_rows=1, capacity=14, **ON_CPU)
    with pytest.raises(PeakwardError, match="at most 14 tokens, got 3 and 12 to come"):
        generate(Speculation(model, small, NGrams(), n_guessed=3, **by), [[4, 4, 4]])
    for left_out in ((), (2,), (0, 1)):
        with pytest.raises(PeakwardError, match="some of the blocks 0 to 1"):
            without_blocks(model, left_out)
