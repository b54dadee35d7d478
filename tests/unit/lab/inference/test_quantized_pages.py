"""Pages of fewer bits say, token by token, what the contiguous cache of those bits says."""

import pytest
import torch

from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.sequences import ContiguousCache
from tiers import in_full

from .test_sequences import LONGEST, ON_CPU, PROMPTS, STEPS, close, texts, through

KINDS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}
SHAPES = ({}, {"n_kv_heads": 2, "window": 5}, {"n_kv_heads": 1, "positions": "alibi"})


def pair(kind, shape, *, n_pages=20, page_size=4):
    at = {"stored": KINDS[kind], **ON_CPU}
    return (
        ContiguousCache(shape, capacity=LONGEST, **at),
        PagedCache(shape, n_pages=n_pages, page_size=page_size, **at),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", SHAPES, ids=str)
@pytest.mark.parametrize(("n_pages", "page_size"), [(20, 4), (80, 1)])
@torch.no_grad()
def test_pages_say_what_a_contiguous_cache_says(kind, changes, n_pages, page_size, make_decoder):
    model = make_decoder(changes)
    whole = texts(model.shape.vocab_size, [n + STEPS for n in PROMPTS])
    contiguous, pages = pair(kind, model.shape, n_pages=n_pages, page_size=page_size)
    exact = PagedCache(model.shape, n_pages=n_pages, page_size=page_size, **ON_CPU)
    for expected, found, full in zip(
        *(through(each, model, whole) for each in (contiguous, pages, exact)), strict=True
    ):
        assert close(found, expected, model.shape.n_layers)
        assert not close(found, full, 10**6)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_shared_pages_are_read_as_they_are_stored(kind, make_decoder):
    """The rest of the second prompt attends to the beginning that the first has stored: as tokens that came
    behind it."""
    model = make_decoder({"n_kv_heads": 2})
    contiguous, pages = pair(kind, model.shape, n_pages=8)
    (long,) = texts(61, [14])
    first, second = long[:10], torch.cat((long[:8], long[11:14]))
    pages.prefill(model, 0, first.tolist())
    found = pages.prefill(model, 1, second.tolist())
    assert pages.tables[1][:2] == pages.tables[0][:2]
    contiguous.prefill(model, 0, first.tolist())
    contiguous.prefill(model, 1, first.tolist())
    contiguous.trim(1, 8)
    expected = contiguous.logits(model, second[None, 8:], slice(1, 2))
    assert close(found, expected, model.shape.n_layers)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_page_is_copied_with_its_scales(kind, make_decoder):
    """Both rows write to the page that they share."""
    model = make_decoder({"n_kv_heads": 2})
    contiguous, pages = pair(kind, model.shape, n_pages=8)
    prompt = texts(61, [10])[0].tolist()
    for cache in (contiguous, pages):
        cache.prefill(model, 0, prompt)
    contiguous.prefill(model, 2, prompt)
    pages.fork(0, onto=2)
    for ids in ([3, 4, 5], [9, 8, 7]):
        step = torch.tensor(ids)[:, None]
        found, expected = (each.logits(model, step, slice(0, 3)) for each in (pages, contiguous))
        for row in (0, 2):
            assert close(found[row : row + 1], expected[row : row + 1], model.shape.n_layers)
    assert pages.tables[2][:2] == pages.tables[0][:2]
    assert pages.tables[2][2] != pages.tables[0][2]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_page_that_was_freed_holds_what_is_written_next(kind, make_decoder):
    model = make_decoder({})
    contiguous, pages = pair(kind, model.shape, n_pages=4)
    one, other = texts(61, [13, 9])
    pages.prefill(model, 0, one.tolist())
    pages.release(0)
    for cache in (contiguous, pages):
        cache.prefill(model, 1, other.tolist())
    rows = slice(1, 2)
    found, expected = (each.logits(model, one[None, :1], rows) for each in (pages, contiguous))
    assert close(found, expected, model.shape.n_layers)


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8 + 4), ("fp8", 8 + 4), ("int4", 4 + 4)])
def test_their_bytes(kind, bits, make_shape):
    """Of heads of eight: a scale of 32 bits for each, or a step and a least of 16. One page is spare."""
    shape = make_shape()
    assert shape.head_dim == 8
    _, pages = pair(kind, shape)
    n_elements = 2 * shape.n_layers * 21 * 4 * shape.n_kv_heads * 8
    assert pages.n_bytes == n_elements * bits // 8
    exact = PagedCache(shape, n_pages=20, page_size=4, **ON_CPU)
    assert exact.n_bytes == n_elements * 8


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("which", [0, 1], ids=["contiguous", "pages"])
@pytest.mark.parametrize("changes", [{"n_kv_heads": 1, "window": 5}, *in_full([{}])], ids=str)
@torch.no_grad()
def test_by_the_kernel(kind, which, changes, make_decoder):
    """Interpreted where there is no GPU, in fp32: as close to fp64 as widened elements are."""
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact = make_decoder(changes)
    whole = texts(exact.shape.vocab_size, [n + STEPS for n in PROMPTS])
    oracle, _ = pair(kind, exact.shape)
    expected = torch.cat(through(oracle, exact, whole))
    model, errors = make_decoder(changes).float().to(device), []
    kind_of, room = (
        (ContiguousCache, {"capacity": LONGEST}),
        (PagedCache, {"n_pages": 20, "page_size": 4}),
    )[which]
    for attention in ("as-model", "flash-decode"):
        on = {"n_rows": 3, "device": device, "dtype": torch.float32, "attention": attention}
        cache = kind_of(model.shape, stored=KINDS[kind], **room, **on)
        found = torch.cat(through(cache, model, [text.to(device) for text in whole])).cpu()
        errors.append(float((found - expected).norm() / expected.norm()))
    widened, of_kernel = errors
    assert 0 < of_kernel <= 2 * widened
