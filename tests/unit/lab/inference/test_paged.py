"""Pages are shared where tokens are the same, and what is written to is a row's own."""

import random

import pytest
import torch

from peakward.lab.inference.paged import PagedCache
from peakward.records.errors import PeakwardError

from .test_sequences import ON_CPU, PROMPTS, ROWS, close, texts, through


def is_sound(cache):
    """Whether all agree on who has which page, and no page that will be written to is shared or known."""
    rows = list(zip(cache.tables, cache.lengths, strict=True))
    users = [sum(page in table for table in cache.tables) for page in range(cache.spare)]
    written = {page for table, n in rows for page in table[n // cache.page_size :]}
    width = cache.block_table.shape[1]
    shown = [table + [cache.spare] * (width - len(table)) for table in cache.tables]
    return (
        users == cache.pages.n_users
        and sorted(cache.pages.free) == [page for page, n in enumerate(users) if not n]
        and all(users[page] == 1 and page not in cache.pages._tokens_of for page in written)
        and cache.block_table.tolist() == shown
        and cache.held.tolist() == cache.lengths
    )


def behind(model, text):
    """The logits behind a whole text, (1, vocab)."""
    return model(torch.as_tensor(text)[None])[:, -1]


@torch.no_grad()
def test_pages_are_shared_copied_freed_and_taken_again(make_decoder):
    model = make_decoder({"n_kv_heads": 2})
    n_layers = model.shape.n_layers
    cache = PagedCache(model.shape, n_pages=8, page_size=4, **ON_CPU)
    (long,) = texts(61, [14])
    first, second = long[:10], torch.cat((long[:8], long[11:14]))
    cache.prefill(model, 0, first.tolist())
    found = cache.prefill(model, 1, second.tolist())
    assert cache.tables[1][:2] == cache.tables[0][:2]  # Two pages of four tokens begin both.
    assert len(cache.pages.free) == 8 - 4
    assert close(found, model(second[None])[:, -1], n_layers)

    cache.fork(0, onto=2)
    assert cache.tables[2][:2] == cache.tables[0][:2]
    assert cache.tables[2][2] != cache.tables[0][2]  # Copied, for both will write to it.
    assert len(cache.pages.free) == 8 - 5
    ids = torch.tensor([[3], [4], [5]])
    found = cache.logits(model, ids, ROWS)
    for row, text in enumerate((first, second, first)):
        expected = model(torch.cat((text, ids[row]))[None])[:, -1]
        assert close(found[row : row + 1], expected, n_layers)

    for row in range(3):
        cache.release(row)
    assert sorted(cache.pages.free) == list(range(8))
    (other,) = texts(61, [31])
    found = cache.prefill(model, 0, other.tolist())  # In all eight pages, whatever their order.
    assert close(found, model(other[None])[:, -1], n_layers)


@torch.no_grad()
def test_a_copy_of_a_row_with_reserved_pages_has_its_own(make_decoder):
    model = make_decoder({"n_kv_heads": 2})
    cache = PagedCache(model.shape, n_pages=8, page_size=4, **ON_CPU)
    (text,) = texts(61, [5])
    cache.prefill(model, 0, text.tolist())
    cache.reserve(0, 6)
    cache.fork(0, onto=1)
    ids = torch.tensor([[3, 4, 5, 6, 7, 8], [13, 14, 15, 16, 17, 18]])
    found = cache.logits(model, ids, slice(0, 2))
    for row, new in enumerate(ids):
        expected = model(torch.cat((text, new))[None])[:, -1]
        assert close(found[row : row + 1], expected, model.shape.n_layers)


@torch.no_grad()
def test_a_row_that_is_not_empty_is_no_copy(make_decoder):
    """Its pages would never be free again."""
    model = make_decoder({})
    cache = PagedCache(model.shape, n_pages=8, page_size=4, **ON_CPU)
    for row in range(2):
        cache.prefill(model, row, [3, 1, 4, 1, 5])
    for onto in range(2):
        with pytest.raises(ValueError, match="expected an empty row, got 5 tokens and 2 pages"):
            cache.fork(0, onto)
    for row in range(2):
        cache.release(row)
    assert len(cache.pages.free) == 8


@torch.no_grad()
def test_pages_that_are_known_are_not_computed_again(make_decoder):
    model = make_decoder({})
    cache = PagedCache(model.shape, n_pages=8, page_size=4, **ON_CPU)
    prompt = texts(61, [9])[0].tolist()
    cache.prefill(model, 0, prompt)
    seen = []
    model.embedding.register_forward_hook(lambda _module, args, _out: seen.append(args[0].shape[1]))
    cache.prefill(model, 1, prompt)
    cache.prefill(
        model, 2, prompt[:8]
    )  # The last page again: its last token's logits are asked for.
    assert seen == [1, 4]
    cache.release(0)
    cache.release(1)
    cache.release(2)
    cache.prefill(model, 0, prompt)  # Nothing is known of pages that nobody uses.
    assert seen[-1] == 9


@torch.no_grad()
def test_a_page_that_is_trimmed_and_written_again_is_known_no_more(make_decoder):
    model = make_decoder({})
    cache = PagedCache(model.shape, n_pages=8, page_size=4, **ON_CPU)
    prompt = texts(61, [8])[0].tolist()
    cache.prefill(model, 0, prompt)
    cache.trim(0, 6)
    cache.logits(model, torch.tensor([[40], [0], [0]]), ROWS)
    cache.release(1)
    longer = [*prompt, 9]
    found = cache.prefill(model, 1, longer)
    assert cache.tables[1][0] == cache.tables[0][0] and cache.tables[1][1] != cache.tables[0][1]
    assert close(found, model(torch.tensor([longer]))[:, -1], model.shape.n_layers)


@pytest.mark.parametrize("n", [6, 8, 9])
@torch.no_grad()
def test_a_copy_goes_on_by_itself_in_steps_that_can_be_captured(n, make_decoder):
    """Such a step asks for no page, and so could not copy one that both rows write to."""
    model = make_decoder({"n_kv_heads": 2})
    cache = PagedCache(model.shape, n_pages=12, page_size=4, **ON_CPU)
    (text,) = texts(61, [n])
    cache.prefill(model, 0, text.tolist())
    cache.reserve(0, 4)
    cache.fork(0, onto=2)
    cache.reserve(2, 4)
    assert is_sound(cache)
    own = [text, text[:0], text]
    active = torch.tensor([True, False, True])
    for step, ids in enumerate(([7, 0, 8], [2, 0, 2], [5, 0, 9])):
        found = cache.advance(model, torch.tensor(ids)[:, None], active, n + step + 1)
        own = [torch.cat((each, torch.tensor([new]))) for each, new in zip(own, ids, strict=True)]
        for row in (0, 2):
            assert close(found[row : row + 1], behind(model, own[row]), model.shape.n_layers)


@torch.no_grad()
def test_a_row_that_is_cut_within_a_shared_page_goes_on_in_a_copy(make_decoder):
    model = make_decoder({"n_kv_heads": 2})
    cache = PagedCache(model.shape, n_pages=7, page_size=4, **ON_CPU)
    (text,) = texts(61, [9])
    for row in range(2):
        cache.prefill(model, row, text.tolist())
    assert cache.tables[1][:2] == cache.tables[0][:2]
    cache.trim(0, 6)
    assert cache.tables[0][0] == cache.tables[1][0] and cache.tables[0][1] != cache.tables[1][1]
    assert is_sound(cache)
    cut = torch.cat((text[:6], torch.tensor([40])))
    active = torch.tensor([True, True, False])
    found = cache.advance(model, torch.tensor([[40], [41], [0]]), active, 10)
    assert close(found[:1], behind(model, cut), model.shape.n_layers)
    longer = torch.cat((text, torch.tensor([41])))
    assert close(found[1:2], behind(model, longer), model.shape.n_layers)


@torch.no_grad()
def test_without_a_page_for_the_copy_all_stays_as_it_was(make_decoder):
    model = make_decoder({})
    cache = PagedCache(model.shape, n_pages=4, page_size=4, **ON_CPU)
    text = texts(61, [9])[0].tolist()
    for row in range(2):
        cache.prefill(model, row, text)
    assert not cache.pages.free
    before = [list(each) for each in cache.tables]
    with pytest.raises(PeakwardError, match="expected 1 free page, got 0 of 4: release a sequence"):
        cache.fork(0, onto=2)
    with pytest.raises(PeakwardError, match="expected 1 free page, got 0 of 4: release a sequence"):
        cache.trim(0, 6)
    assert cache.tables == before and cache.lengths == [9, 9, 0]
    assert is_sound(cache)


@torch.no_grad()
def test_a_table_has_room_for_the_longest_row_alone(make_decoder):
    model = make_decoder({})
    cache = PagedCache(model.shape, n_pages=20, page_size=4, longest=22, **ON_CPU)
    whole = PagedCache(model.shape, n_pages=20, page_size=4, **ON_CPU)
    assert cache.block_table.shape == (3, 6) and cache.limit == 22
    assert whole.block_table.shape == (3, 20) and whole.limit == 80
    longer = PagedCache(model.shape, n_pages=5, page_size=4, longest=99, **ON_CPU)
    assert longer.block_table.shape == (3, 5) and longer.limit == 20
    rows = texts(61, [n + 9 for n in PROMPTS])
    for found, expected in zip(
        *(through(each, model, rows) for each in (cache, whole)), strict=True
    ):
        assert torch.equal(found, expected)
    with pytest.raises(
        PeakwardError, match="at most 22 tokens, got 20 and 3 to come: make a cache"
    ):
        cache.fits([1] * 20, 3)
    with pytest.raises(
        PeakwardError, match="at most 22 tokens, got one of 23: make a cache for 23"
    ):
        cache.reserve(2, 2)
    cache.reserve(2, 1)


@torch.no_grad()
def test_what_was_reserved_for_an_empty_row_is_free_for_its_prompt(make_decoder):
    model = make_decoder({})
    cache = PagedCache(model.shape, n_pages=8, page_size=4, **ON_CPU)
    text = texts(61, [9])[0].tolist()
    cache.prefill(model, 0, text)
    cache.reserve(1, 9)
    found = cache.prefill(model, 1, text)
    assert close(found, behind(model, text), model.shape.n_layers)
    assert is_sound(cache)


@pytest.mark.parametrize("page_size", [1, 3, 4])
@torch.no_grad()
def test_whatever_is_done_pages_hold_each_rows_own_text(page_size, make_decoder):
    """Texts of two words, so that many begin alike."""
    model = make_decoder({"n_kv_heads": 1, "n_layers": 1})
    cache = PagedCache(model.shape, n_pages=24, page_size=page_size, longest=20, **ON_CPU)
    drawn, rows = random.Random(page_size), [[], [], []]
    for _ in range(150):
        row, what = drawn.randrange(3), drawn.choice(("prompt", "trim", "fork", "step", "release"))
        own, found = rows[row], None
        try:
            if what == "prompt" and not own:
                ids = drawn.choices((0, 1), k=drawn.randrange(1, 12))
                found, rows[row] = cache.prefill(model, row, ids), ids
            elif what == "step" and own:
                ids = drawn.choices((0, 1), k=drawn.randrange(1, 4))
                found = cache.logits(model, torch.tensor([ids]), slice(row, row + 1))
                rows[row] = own + ids
            elif what == "trim" and own:
                n = drawn.randrange(1, len(own) + 1)
                cache.trim(row, n)
                rows[row] = own[:n]
            elif what == "fork" and own and [] in rows:
                onto = rows.index([])
                cache.fork(row, onto)
                rows[onto] = own
            elif what == "release":
                cache.release(row)
                rows[row] = []
        except PeakwardError:
            pass
        assert is_sound(cache) and cache.lengths == list(map(len, rows))
        if found is not None:
            assert close(found, behind(model, rows[row]), model.shape.n_layers)
