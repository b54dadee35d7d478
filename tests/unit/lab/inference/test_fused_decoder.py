"""The loop on the fused step makes the texts of the loop on modules, in Triton's interpreter on a CPU."""

import pytest
import torch

from gguf_files import small_model
from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference import speed
from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.distilling import distilled
from peakward.lab.inference.drafts import ModelDraft, NGrams
from peakward.lab.inference.generate import generate
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.pretrained import Pretrained
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.inference.serving import Request, serve
from peakward.lab.inference.speculation import Speculation
from peakward.lab.inference.text import decoding_of
from peakward.lab.models import decoder
from peakward.lab.models.layers import QuantisedLinear
from peakward.records.case import SpeculationCase
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling
from tiers import in_full, rows_in_full

pytest.importorskip("triton")
from peakward.kernels.ops.decode_step.triton import launch, launch_several
from peakward.lab.inference.fused_step import FusedDecoder, FusedDecoding, FusedStep

N_NEW, CAPACITY = 4, 20
PROMPTS = ([5, 9, 2, 7], [31])
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has it compiled")
MODELS = {
    "as real ones": {"n_kv_heads": 2, "tied_head": True, "qkv_bias": True, "rope_theta": 500.0},
    "int8": {"weights": "int8", "n_layers": 1},
}


@pytest.fixture
def make(make_shape):
    def model(dtype=torch.float32, *, weights="dense", **changes):
        found = decoder.build(
            make_shape(**changes),
            attention=implementation("naive"),
            weights=weights,
            device="cpu",
            dtype=dtype,
            seed=0,
        )
        for each in found.blocks.modules():  # So that one token leads to another.
            if isinstance(each, QuantisedLinear):
                each.scale.mul_(40)
            elif isinstance(each, torch.nn.Linear):
                each.weight.data.mul_(40)
        return found.eval().requires_grad_(False)

    return model


def cache_of(model, n_rows=1, *, in_pages=False, **stored):
    at = {"n_rows": n_rows, "device": "cpu", "dtype": model.embedding.weight.dtype, **stored}
    if in_pages:
        return PagedCache(model.shape, n_pages=3 * n_rows, page_size=8, longest=CAPACITY, **at)
    return ContiguousCache(model.shape, capacity=CAPACITY, **at)


def loops(model, n_rows=1, *, in_pages=False, stored=None, **how):
    """The loop on modules, that on fused steps and that with the choice in them, each with a cache of its
    own."""
    how = {"by": Sampling(), "most_new_tokens": N_NEW} | how
    caches = [cache_of(model, n_rows=n_rows, in_pages=in_pages, stored=stored) for _ in range(3)]
    return [
        Decoding(model, caches[0], **how),
        Decoding(FusedDecoder(model, caches[1]), caches[1], **how),
        FusedDecoding(model, caches[2], **how),
    ]


@pytest.mark.parametrize("name", [*list(MODELS)[:1], *in_full(list(MODELS)[1:])])
def test_texts_of_one_loop_are_those_of_the_other(name, make):
    """One after the other in the same row, so that a position that stayed behind would show; and so are the
    keys and values that both leave."""
    model = make(**MODELS[name])
    made = loops(model)
    for prompt in PROMPTS if "weights" not in MODELS[name] else PROMPTS[1:]:
        texts = [generate(each, [prompt]).tokens for each in made]
        assert texts[0] == texts[1] == texts[2]
        assert len(set(texts[0][0])) > 1
    n = len(PROMPTS[-1]) + N_NEW - 1
    for name in ("keys", "values"):
        exact, *others = (getattr(each.cache.storage, name) for each in made)
        for found in others:
            torch.testing.assert_close(found[..., :n, :], exact[..., :n, :], rtol=1e-3, atol=1e-3)
            assert not found[..., CAPACITY // 2 :, :].any()


@pytest.mark.parametrize("in_pages", [False, True], ids=["rows", "pages"])
@pytest.mark.parametrize("name", [*list(MODELS)[:1], *in_full(list(MODELS)[1:])])
def test_texts_of_several_rows_are_those_of_the_modules(name, in_pages, make):
    """Prompts of other lengths in each row, so that a row at another's position would show. In pages the
    second text begins on one that another took before it."""
    made = loops(make(**MODELS[name]), n_rows=2, in_pages=in_pages)
    for each in made if in_pages else ():
        generate(each, [PROMPTS[0]])
    texts = [generate(each, PROMPTS).tokens for each in made]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0][0] != texts[0][1]


@pytest.mark.parametrize("in_pages", [False, *in_full([True])])
@pytest.mark.parametrize("n_rows", [1, 2])
def test_on_a_cache_in_int8_both_leave_the_same_bytes(n_rows, in_pages, make):
    """All but those that a last bit of the element moves to the next one."""
    model = make(**MODELS["as real ones"])
    made = loops(model, n_rows=n_rows, in_pages=in_pages, stored=torch.int8)
    texts = [generate(each, PROMPTS[:n_rows]).tokens for each in made]
    assert texts[0] == texts[1] == texts[2]
    exact, *others = (each.cache.storage for each in made)
    for found in others:
        apart = [
            (one.int() - other.int()).abs()
            for one, other in zip(
                (found.keys, found.values), (exact.keys, exact.values), strict=True
            )
        ]
        assert all(each.max() <= 1 and each.float().mean() < 0.01 for each in apart)
        for one, other in zip(found.parts[2:], exact.parts[2:], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@torch.inference_mode()
def test_a_text_ends_in_the_step_as_it_does_behind_it(make):
    """By a token that ends it, or full; what a row writes behind its end is no part of its text, and another
    row goes on."""
    model = make(**MODELS["as real ones"])
    texts = generate(loops(model, n_rows=2)[0], PROMPTS).tokens
    ends = frozenset({texts[0][1], 63})
    made = loops(model, n_rows=2, ends=ends)[::2]
    for decoding in made:
        for row, prompt in enumerate(PROMPTS):
            decoding.admit(row, prompt, N_NEW - row, row)
        decoding.run(N_NEW + 1)
    for row in range(2):
        assert made[0].text(row).tolist()[-1] == made[1].text(row).tolist()[-1]
        n = int(made[0].text(row)[-1])
        assert made[0].text(row)[:n].tolist() == made[1].text(row)[:n].tolist()
    assert int(made[1].text(0)[-1]) == 2
    for name in ("_made", "_ended", "_ids"):
        assert torch.equal(getattr(made[0], name), getattr(made[1], name))
    assert torch.equal(made[0].cache.held, made[1].cache.held)


def test_a_queue_through_pages_makes_each_its_own_text(make):
    """Rows end and begin at other times, and prompts that begin alike share a page."""
    model = make(**MODELS["as real ones"])
    requests = [Request([5, 9, 2, 7, 5, 9, 2, 7, 1 + n], 2 + n) for n in range(3)]
    plain, _, fused = loops(model, n_rows=2, in_pages=True)
    found = [serve(each, requests, "continuous").tokens for each in (plain, fused)]
    assert found[0] == found[1]
    assert [len(each) for each in found[0]] == [2, 3, 4]


def test_drawn_texts_are_those_of_the_modules(make):
    by = Sampling(temperature=0.7, top_k=20, seed=3)
    plain, _, fused = loops(make(**MODELS["as real ones"]), by=by)
    assert generate(plain, [PROMPTS[0]]).tokens == generate(fused, [PROMPTS[0]]).tokens


@pytest.mark.parametrize("n_rows", [1, *in_full([2])])
@pytest.mark.parametrize("drafting", ["n-grams", "a model"])
def test_guesses_are_checked_by_one_fused_step(drafting, n_rows, make):
    """The texts are those of the loop without guesses; the draft's own passes, of two tokens and of one, are
    fused too."""
    model, draft = make(**MODELS["as real ones"]), make(n_layers=1)
    prompts = ([5, 9, 2, 5, 9, 2, 5], [31, 31, 31])[:n_rows]
    plain = Decoding(model, cache_of(model, n_rows=n_rows), by=Sampling(), most_new_tokens=N_NEW)
    held, of_draft = (cache_of(each, n_rows=n_rows) for each in (model, draft))
    drafter = (
        NGrams() if drafting == "n-grams" else ModelDraft(FusedDecoder(draft, of_draft), of_draft)
    )
    guessing = Speculation(
        FusedDecoder(model, held), held, drafter, n_guessed=2, by=Sampling(), most_new_tokens=N_NEW
    )
    exact, passes = generate(plain, prompts).tokens, []
    model.register_forward_hook(lambda module, given, made: passes.append(made.shape))
    assert generate(guessing, prompts).tokens == exact
    assert len(passes) == n_rows  # Prompts alone.


def test_a_distilled_draft_goes_through_its_modules(make):
    """Its matrix stands in no fused step; the model's own steps are fused."""
    model, passes = make(n_layers=3, max_seq_len=64), []
    found = Pretrained(model, None, frozenset(), "fp32")
    how = {"by": Sampling(), "n": N_NEW}
    exact = generate(decoding_of(found, PROMPTS[:1], guesses=0, draft=None, **how), PROMPTS[:1])
    draft = distilled(model, range(1, 2), attention="as-model")
    guessing = decoding_of(found, PROMPTS[:1], guesses=2, draft=draft, step="fused", **how)
    draft.blocks[0].register_forward_hook(lambda *_: passes.append("draft"))
    model.register_forward_hook(lambda *_: passes.append("model"))
    assert generate(guessing, PROMPTS[:1]).tokens == exact.tokens
    assert passes.count("model") == 1  # The prompt alone.
    assert passes.count("draft") == 1 + 2 * guessing.n_steps


@pytest.mark.parametrize(
    ("name", "stored"), [*rows_in_full([("int8", None)]), ("as real ones", torch.int8)]
)
def test_guesses_beside_fewer_bits_go_through_the_modules(name, stored, make):
    """There a fused step of several tokens is not measured to be faster; one of a single token is taken."""
    model, passes = make(**MODELS[name]), []
    cache = cache_of(model, stored=stored)
    fused = FusedDecoder(model, cache)
    guessing = Speculation(
        fused, cache, NGrams(), n_guessed=2, by=Sampling(), most_new_tokens=N_NEW
    )
    model.register_forward_hook(lambda module, given, made: passes.append(made.shape[1]))
    texts = generate(guessing, PROMPTS[1:]).tokens
    assert passes[1:] == [3] * guessing.n_steps
    plain = Decoding(model, cache_of(model, stored=stored), by=Sampling(), most_new_tokens=N_NEW)
    assert texts == generate(plain, PROMPTS[1:]).tokens


@torch.inference_mode()
def test_prompts_go_through_the_modules(make):
    one, *others = (each.cache.prefill(each.model, 0, PROMPTS[0]) for each in loops(make()))
    assert all(torch.equal(one, other) for other in others)


@pytest.mark.full
@torch.inference_mode()
def test_in_16_bits_no_choice_is_further_off_than_the_noise(make):
    """The noise is that of a pass in 16 bits over the text; a reordered step may double it. The interpreter
    computes bf16 wrongly."""
    wide, narrow = make(), make(torch.float16)
    for decoding in loops(narrow):
        text = generate(decoding, [PROMPTS[0]]).tokens[0]
        whole = torch.tensor([[*PROMPTS[0], *text[:-1]]])
        exact, rounded = (each(whole)[0, len(PROMPTS[0]) - 1 :] for each in (wide, narrow))
        taken = exact.gather(1, torch.tensor(text)[:, None])[:, 0]
        assert float((exact.amax(-1) - taken).max()) <= 4 * float((rounded - exact).abs().max())


@torch.inference_mode()
def test_programs_that_share_columns_leave_nothing_behind(make):
    """A second step makes what the first one did, and so does one by the rule, which shares none here."""
    model = make()
    cache, ids, position = cache_of(model, n_rows=2), torch.tensor([5, 9]), torch.tensor([3, 0])
    held = cache.storage.layers
    plain = FusedStep(model, held)
    cut = plain.cuts.out._replace(block=16, columns=16, parts=1, splits=2)
    split = FusedStep(model, held, plain.cuts._replace(out=cut, down=cut))
    first, second = split(ids, position), split(ids, position)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, plain(ids, position), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_column_of_texts_is_read_token_by_token(make):
    model = make()
    cache, texts = cache_of(model, n_rows=3), torch.arange(12).view(3, 4)
    step = FusedStep(model, cache.storage.layers)
    position = torch.arange(6).view(3, 2)
    ids = texts[:, 1]
    assert torch.equal(step(ids, position[:, 0]), step(ids.clone(), position[:, 0].clone()))


MARGIN = 4096


@pytest.fixture
def amid_others(monkeypatch):
    """Has every launch find its tensors amid others' memory, NaN or the largest whole numbers, which must
    stay as it is. It gives the names of the kernels."""
    started = []

    def surrounded(tensor):
        kind = tensor.dtype
        other = (
            torch.nan
            if kind.is_floating_point
            else 1
            if kind == torch.bool
            else torch.iinfo(kind).max
        )
        whole = torch.full((tensor.numel() + 2 * MARGIN,), other, dtype=kind)
        return whole, whole[MARGIN:-MARGIN].view(tensor.shape).copy_(tensor)

    def start(kernel, grid, *arguments, **options):
        given = {id(each): surrounded(each) for each in arguments if torch.is_tensor(each)}
        before = {name: whole.clone() for name, (whole, _) in given.items()}
        inside = [given[id(each)][1] if torch.is_tensor(each) else each for each in arguments]
        kernel[grid](*inside, **options)
        for each in arguments:
            if torch.is_tensor(each):
                whole, found = given[id(each)]
                each.copy_(found)
                found.copy_(before[id(each)][MARGIN:-MARGIN].view(each.shape))
                assert torch.equal(whole.view(torch.uint8), before[id(each)].view(torch.uint8))
        started.append(kernel.fn.__name__)

    for each in (launch, launch_several):
        monkeypatch.setattr(each, "launch", start)
    return started


@torch.inference_mode()
@pytest.mark.parametrize("weights", ["dense", *in_full(["int8", "int4:128"])])
@pytest.mark.parametrize("stored", [None, torch.int8], ids=["as it is", "in int8"])
@pytest.mark.parametrize("rows", [(1, 5), *in_full([(1, 1), (2, 1), (1, 16)])])
def test_no_kernel_touches_what_is_beside_its_tensors(weights, rows, stored, make, request):
    """At the last places of a cache, by programs that share columns too."""
    in_groups = {"d_model": 128, "d_ff": 128, "head_dim": 32} if weights == "int4:128" else {}
    (n_rows, n_new), model = rows, make(weights=weights, n_layers=2, n_kv_heads=2, **in_groups)
    cache = cache_of(model, n_rows=n_rows, stored=stored)
    ids = torch.arange(n_rows * n_new) % 60
    position = torch.full((n_rows,), CAPACITY - n_new)
    step = FusedStep(model, cache.storage.layers, n_new=n_new)
    if step.n_rows > 1:
        cut = step.cuts.out._replace(splits=2)
        cuts = step.cuts._replace(out=cut, down=cut)
        step = FusedStep(model, cache.storage.layers, cuts, n_new=n_new)
    exact = step(ids, position)
    started = request.getfixturevalue("amid_others")
    assert torch.equal(step(ids, position), exact)
    assert len(started) == 1 + 5 * 2 + 1


def test_refusals(make):
    with pytest.raises(PeakwardError, match="decode-step fused needs no window, got 5"):
        model = make(window=5)
        FusedDecoder(model, cache_of(model))
    model = make()
    with pytest.raises(PeakwardError, match="at most 16 new tokens in a step, got 17"):
        FusedDecoder(model, cache_of(model, n_rows=17))
    for dtype, stored in ((torch.float32, torch.uint8), (torch.float16, torch.int8)):
        narrow = make(dtype)
        with pytest.raises(PeakwardError, match=f"without gaps, got {stored}: take"):
            FusedDecoder(narrow, cache_of(narrow, stored=stored))


@pytest.mark.full
def test_texts_with_guesses_and_without_are_timed_on_it(in_tmp, monkeypatch):
    small_model(in_tmp / "small.gguf")
    monkeypatch.setattr(speed, "PROMPTS", ("hell, hell,", "a hell"))
    made = []
    monkeypatch.setattr(FusedDecoder, "__init__", spied(FusedDecoder.__init__, made))
    monkeypatch.setattr(FusedDecoding, "__init__", spied(FusedDecoding.__init__, made))
    case = SpeculationCase(
        model="small.gguf",
        draft="ngrams",
        guesses=3,
        n_prompts=2,
        n_new_tokens=6,
        decode_step="fused",
        device="cpu",
    )
    found = speed.speculated(case, lambda _: None).speculated
    assert found.n_equal == 2
    assert min(found.step_s, found.check_s) > 0
    # The texts without guesses and with them, then a step of each for its time.
    assert made.count(FusedDecoding) == 2
    assert made.count(FusedDecoder) >= 2


def spied(init, made):
    def wrapped(self, *rest, **options):
        made.append(type(self))
        init(self, *rest, **options)

    return wrapped
