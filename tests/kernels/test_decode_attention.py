"""Decode attention against its definition in fp64, and against torch's scaled_dot_product_attention."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from oracle import assert_as_close_as, assert_same_specials, error
from peakward.kernels.ops.decode_attention import api, reference
from tiers import drawn_in_full, in_full

kernel = pytest.importorskip("peakward.kernels.ops.decode_attention.triton")
bounds = pytest.importorskip("peakward.kernels.ops.decode_attention.triton.settings")

HEAD_DIMS = (16, 80, 96, 128)
STORED = (torch.int8, torch.float8_e4m3fn)


def cut(n_splits):
    return kernel.Settings(n_splits, block_positions=32, num_warps=4, num_stages=2)


def mask(lengths, positions, n_queries, window):
    """(batch, 1, n_queries, positions): where a query may attend to."""
    position = torch.arange(positions)
    own = lengths[:, None, None] - n_queries + torch.arange(n_queries)[:, None]
    allowed = (position <= own) & (position > own - (window or positions + n_queries))
    return allowed[:, None]


def torchs(q, k, v, lengths, window):
    """scaled_dot_product_attention in the same type; zeros where nothing is allowed."""
    if q.numel() == 0:
        return q.contiguous()
    allowed = mask(lengths, k.shape[2], q.shape[2], window)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=allowed, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.masked_fill(~allowed.any(-1, keepdim=True), 0)


def exactly(q, k, v, lengths, window):
    """The result and the log-sum-exp in fp64."""
    wide = [each.double() for each in (q, k, v)]
    return reference.decode_attention(*wide, lengths=lengths, window=window)


def drawn(*, dtype, batch, kv_heads, group, n_queries, positions, head_dim, seed):
    """q, k, v as a decoder's projections leave them: views of (batch, positions, heads, head_dim)."""
    torch.manual_seed(seed)
    sizes = ((n_queries, kv_heads * group), (positions, kv_heads), (positions, kv_heads))
    return [
        torch.randn(batch, *size, head_dim, dtype=torch.float32).to(dtype).transpose(1, 2)
        for size in sizes
    ]


@drawn_in_full(12)
@given(
    batch=st.integers(0, 2),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 3, 8, 20]),
    n_queries=st.sampled_from([1, 2, 8]),
    positions=st.sampled_from([1, 17, 127]),
    head_dim=st.sampled_from(HEAD_DIMS),
    window=st.sampled_from([None, 1, 40]),
    n_splits=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
@example(
    batch=1,
    kv_heads=2,
    group=1,
    n_queries=1,
    positions=127,
    head_dim=96,
    window=None,
    n_splits=1,
    seed=4,
)
@example(
    batch=2,
    kv_heads=2,
    group=3,
    n_queries=2,
    positions=127,
    head_dim=80,
    window=40,
    n_splits=3,
    seed=0,
)
def test_is_as_close_to_fp64_as_torch_is(dtypes, device, n_splits, window, seed, **size):
    for dtype in dtypes:
        q, k, v = drawn(dtype=dtype, seed=seed, **size)
        lengths = torch.randint(0, k.shape[2] + 1, (len(q),))
        out, lse = kernel.decode_attention(
            q, k, v, lengths=lengths, window=window, settings=cut(n_splits)
        )
        exact, exact_lse = exactly(q, k, v, lengths, window)
        others = [
            (torchs(*each, lengths, window), exactly(*each, lengths, window)[0])
            for each in (drawn(dtype=dtype, seed=100 + i, **size) for i in range(8))
        ]
        assert_as_close_as(torchs(q, k, v, lengths, window), out, exact, others)
        assert lse.dtype == torch.float32
        assert torch.equal(lse.isneginf(), exact_lse.isneginf())
        there = ~exact_lse.isneginf()
        assert torch.allclose(lse[there].double(), exact_lse[there], rtol=1e-5, atol=1e-5)


@drawn_in_full(6)
@given(
    page_size=st.sampled_from([5, 16, 48]),
    n_queries=st.sampled_from([1, 3]),
    stored=st.sampled_from([None, *STORED, torch.uint8]),
    window=st.sampled_from([None, 40]),
    seed=st.integers(0, 99),
)
@example(page_size=16, n_queries=3, stored=torch.int8, window=40, seed=0)
@example(page_size=5, n_queries=1, stored=torch.uint8, window=None, seed=1)
def test_pages_give_what_a_contiguous_cache_does(
    device, page_size, n_queries, stored, window, seed
):
    torch.manual_seed(seed)
    batch, kv_heads, heads, head_dim, max_pages = 2, 2, 6, 32, 60 // page_size + 1
    n_pages = batch * max_pages + 3
    q = torch.randn(batch, heads, n_queries, head_dim)
    table = torch.randperm(n_pages)[: batch * max_pages].view(batch, max_pages).int()
    caches = [torch.randn(n_pages, page_size, kv_heads, head_dim) for _ in range(2)]
    scales = [None, None]
    if stored is not None:
        kept = [
            reference.packed(c) if stored == torch.uint8 else reference.quantized(c, stored)
            for c in caches
        ]
        caches, scales = zip(*kept, strict=True)
    lengths = torch.tensor([max_pages * page_size, 37])
    # Beyond what is needed a table may hold anything.
    table[1, -(-37 // page_size) :] = 1 << 30
    whole = table.clone()
    whole[whole == 1 << 30] = 0
    options = {"window": window, "settings": cut(3)}
    paged = kernel.decode_attention(
        q,
        *caches,
        lengths=lengths,
        block_table=table,
        k_scale=scales[0],
        v_scale=scales[1],
        **options,
    )
    contiguous = kernel.decode_attention(
        q,
        *(reference.gathered(each, whole) for each in caches),
        lengths=lengths,
        k_scale=None if stored is None else reference.gathered(scales[0], whole),
        v_scale=None if stored is None else reference.gathered(scales[1], whole),
        **options,
    )
    for mine, other in zip(paged, contiguous, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("deviation", [1.0, *in_full([1e-4])])
@pytest.mark.parametrize("head_dim", [80, *in_full([16])])
def test_a_quantised_cache_is_dequantised_exactly(dtypes, device, stored, deviation, head_dim):
    for dtype in dtypes:
        q, k, v = drawn(
            dtype=dtype,
            batch=2,
            kv_heads=2,
            group=2,
            n_queries=2,
            positions=77,
            head_dim=head_dim,
            seed=3,
        )
        (k, k_scale), (v, v_scale) = (
            reference.quantized(each * deviation, stored) for each in (k, v)
        )
        lengths = torch.tensor([77, 40])
        out, _ = kernel.decode_attention(
            q, k, v, lengths=lengths, k_scale=k_scale, v_scale=v_scale, settings=cut(2)
        )
        wide = [
            reference.dequantized(*each, torch.float64) for each in ((k, k_scale), (v, v_scale))
        ]
        exact, _ = reference.decode_attention(q.double(), *wide, lengths=lengths)
        near = [reference.dequantized(*each, dtype) for each in ((k, k_scale), (v, v_scale))]
        assert_as_close_as(torchs(q, *near, lengths, None), out, exact)


@pytest.mark.parametrize("group", [1, 5, *in_full([8, 20])])
def test_one_large_element_of_a_query_leaves_the_others_exact(dtypes, device, group):
    """Digits of int8 are in units of a query's largest element, which meets zeros here: scores come from the
    others alone."""
    for dtype in dtypes:
        q, k, v = drawn(
            dtype=dtype,
            batch=2,
            kv_heads=2,
            group=group,
            n_queries=2,
            positions=77,
            head_dim=96,
            seed=5,
        )
        q[..., 3] = 30.0
        k[..., 3] = 0.0
        (k, k_scale), (v, v_scale) = (reference.quantized(each, torch.int8) for each in (k, v))
        out, lse = kernel.decode_attention(
            q, k, v, k_scale=k_scale, v_scale=v_scale, settings=cut(2)
        )
        wide = [
            reference.dequantized(*each, torch.float64) for each in ((k, k_scale), (v, v_scale))
        ]
        exact, exact_lse = reference.decode_attention(q.double(), *wide)
        near = [reference.dequantized(*each, dtype) for each in ((k, k_scale), (v, v_scale))]
        lengths = torch.full((2,), 77)
        assert_as_close_as(torchs(q, *near, lengths, None), out, exact)
        # Each element is off by half a unit at most, of 32,639 to the largest; fp32 rounds the rest.
        half_unit = 0.0 if dtype == torch.float32 else 30 / 65278
        bound = half_unit * wide[0].abs().sum(-1).max() / 96**0.5 + 1e-5
        assert (lse - exact_lse).abs().max() <= bound


@pytest.mark.parametrize("stored", [*STORED, torch.uint8], ids=str)
@pytest.mark.parametrize("value", [float("nan"), *in_full([float("inf"), float("-inf")])])
def test_a_query_that_is_not_finite_has_no_finite_output(dtypes, device, stored, value):
    for dtype in dtypes:
        q, k, v = drawn(
            dtype=dtype,
            batch=2,
            kv_heads=2,
            group=2,
            n_queries=1,
            positions=40,
            head_dim=32,
            seed=0,
        )
        q[1, 1, 0, 3] = value
        (k, k_scale), (v, v_scale) = (reference.quantized(each, stored) for each in (k, v))
        out, _ = kernel.decode_attention(q, k, v, k_scale=k_scale, v_scale=v_scale, settings=cut(2))
        assert out[1, 1].isnan().all()
        assert out.isfinite().sum() == out.numel() - 32


@pytest.mark.parametrize("group", [1, *in_full([5])])
@pytest.mark.parametrize("offset", [0.0, *in_full([30.0])])
@pytest.mark.parametrize("head_dim", [96, 80, *in_full([16, 64, 128])])
def test_a_cache_of_half_bytes_is_unpacked_exactly(dtypes, device, head_dim, offset, group):
    for dtype in dtypes:
        q, k, v = drawn(
            dtype=dtype,
            batch=2,
            kv_heads=2,
            group=group,
            n_queries=2,
            positions=77,
            head_dim=head_dim,
            seed=3,
        )
        (k, k_kept), (v, v_kept) = (reference.packed(each + offset) for each in (k, v))
        assert k.shape[3] == head_dim // 2
        assert k_kept.shape[3] == (head_dim // 32 if head_dim % 32 == 0 else 1)
        lengths = torch.tensor([77, 40])
        out, _ = kernel.decode_attention(
            q, k, v, lengths=lengths, k_scale=k_kept, v_scale=v_kept, settings=cut(2)
        )
        kept = ((k, k_kept), (v, v_kept))
        wide = [reference.unpacked(*each, torch.float64) for each in kept]
        exact, _ = reference.decode_attention(q.double(), *wide, lengths=lengths)
        near = [reference.unpacked(*each, dtype) for each in kept]
        assert_as_close_as(torchs(q, *near, lengths, None), out, exact)


def test_of_half_bytes_nothing_behind_a_length_is_read(device):
    torch.manual_seed(0)
    q = torch.randn(3, 4, 2, 48)
    (k, k_kept), (v, v_kept) = (reference.packed(torch.randn(3, 2, 90, 48)) for _ in range(2))
    lengths = torch.tensor([0, 1, 50])
    wide = [reference.unpacked(*each, torch.float64) for each in ((k, k_kept), (v, v_kept))]
    exact, exact_lse = reference.decode_attention(q.double(), *wide, lengths=lengths)
    for each in (k_kept, v_kept):
        for sequence, length in enumerate(lengths.tolist()):
            each[sequence, :, length:] = torch.nan
    out, lse = kernel.decode_attention(
        q, k, v, lengths=lengths, k_scale=k_kept, v_scale=v_kept, settings=cut(3)
    )
    assert error(out, exact) < 1e-6
    assert torch.equal(lse.isneginf(), exact_lse.isneginf())


@pytest.mark.parametrize("head_dim", [8, 64])
def test_half_a_byte_an_element(device, head_dim):
    """16 steps between the least and the largest of a group: half a step off at most, and bf16's rounding
    of step and least."""
    generator = torch.Generator(device).manual_seed(0)
    elements = torch.randn((3, 5, head_dim), generator=generator, dtype=torch.float64) * 10 + 3
    elements[0, 0] = 0
    elements[1, 1] = -7.125
    stored, kept = reference.packed(elements)
    assert (stored.dtype, stored.shape) == (torch.uint8, (3, 5, head_dim // 2))
    found = reference.unpacked(stored, kept, torch.float64)
    groups = elements.unflatten(-1, (kept.shape[-2], -1))
    width = groups.amax(-1) - groups.amin(-1)
    rounding = 2**-8 * (groups.abs().amax(-1) + width)
    off = (found - elements).unflatten(-1, (kept.shape[-2], -1)).abs().amax(-1)
    assert (off <= width / 30 + rounding).all()
    assert (off[2] > width[2] / 60).any()
    assert torch.equal(found[0, 0], elements[0, 0]) and torch.equal(found[1, 1], elements[1, 1])
    again = reference.packed(found)
    torch.testing.assert_close(reference.unpacked(*again, torch.float64), found, rtol=0, atol=0.15)


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_quantising_errs_by_half_a_step(device, stored):
    torch.manual_seed(0)
    cache = torch.randn(3, 5, 64)
    cache[1, 2] = 0
    held, scale = reference.quantized(cache, stored)
    assert held.dtype == stored
    assert scale.shape == (3, 5)
    # Of int8 half a unit of at most 1/127 of the largest; e4m3 keeps four significant bits.
    bound = cache.abs().amax(-1, keepdim=True) / 254 if stored == torch.int8 else cache.abs() / 16
    least = scale[..., None] * 2.0**-10
    assert (
        (reference.dequantized(held, scale, torch.float32) - cache).abs() <= bound + least
    ).all()


@pytest.mark.parametrize("value", [float("nan"), *in_full([float("inf"), float("-inf")])])
@pytest.mark.parametrize("place", ["q", "k", "v"])
def test_nan_and_infinity_reach_what_torch_lets_them_reach(dtypes, device, value, place):
    for dtype in dtypes:
        q, k, v = drawn(
            dtype=dtype,
            batch=2,
            kv_heads=2,
            group=2,
            n_queries=1,
            positions=70,
            head_dim=16,
            seed=0,
        )
        {"q": q, "k": k, "v": v}[place][1, 1, 0, 3] = value
        out, _ = kernel.decode_attention(q, k, v, settings=cut(3))
        with sdpa_kernel(
            SDPBackend.MATH
        ):  # The definition: a CPU's flash kernel has zeros for NaN.
            theirs = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        assert_same_specials(theirs, out)


@pytest.mark.parametrize("n_splits", [1, 3])
def test_nothing_behind_a_length_is_read_nor_an_output_left_unwritten(
    device, n_splits, monkeypatch
):
    empty = torch.empty

    def poisoned(*size, **options):
        return empty(*size, **options).fill_(torch.nan)

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 2, 48), torch.randn(3, 2, 90, 48), torch.randn(3, 2, 90, 48)
    lengths = torch.tensor([0, 1, 50], dtype=torch.int32)
    for each in (k, v):
        for sequence, length in enumerate(lengths.tolist()):
            each[sequence, :, length:] = torch.nan
    monkeypatch.setattr(torch, "empty", poisoned)
    out, lse = kernel.decode_attention(q, k, v, lengths=lengths, settings=cut(n_splits))
    exact, exact_lse = reference.decode_attention(q, k, v, lengths=lengths)
    assert error(out, exact.double()) < 1e-6
    assert torch.equal(lse.isneginf(), exact_lse.isneginf())
    assert not out[0].any()


def test_equal_calls_give_equal_bits(device):
    q, k, v = drawn(
        dtype=torch.float32,
        batch=2,
        kv_heads=1,
        group=4,
        n_queries=1,
        positions=200,
        head_dim=16,
        seed=0,
    )
    first, second = (kernel.decode_attention(q, k, v, settings=cut(5))[0] for _ in range(2))
    assert torch.equal(first, second)


def test_strides_do_not_matter(device):
    q, k, v = torch.randn(2, 4, 1, 32), torch.randn(2, 2, 32, 60), torch.randn(60, 2, 2, 64)
    k, v = k.mT, v.permute(2, 1, 0, 3)[..., ::2]
    got = api.decode_attention(q, k, v)
    assert torch.equal(got, api.decode_attention(q, k.contiguous(), v.contiguous()))
    assert error(got, reference.decode_attention(q.double(), k.double(), v.double())[0]) < 1e-6


def test_nor_do_the_strides_of_lengths(device):
    q, k, v = torch.randn(2, 4, 1, 32), torch.randn(2, 2, 60, 32), torch.randn(2, 2, 60, 32)
    for lengths in (torch.tensor([7, 60, 31, 60])[::2], torch.tensor([31]).expand(2)):
        got = api.decode_attention(q, k, v, lengths)
        assert torch.equal(got, api.decode_attention(q, k, v, lengths.contiguous()))


def test_a_scale_replaces_the_root_of_head_dim(device):
    q, k, v = torch.randn(1, 2, 1, 16), torch.randn(1, 2, 20, 16), torch.randn(1, 2, 20, 16)
    got = api.decode_attention(q, k, v, scale=0.5)
    assert (
        error(got, reference.decode_attention(q.double(), k.double(), v.double(), scale=0.5)[0])
        < 1e-6
    )


def test_the_operator_is_one_that_torch_can_trace(device):
    q, k, v = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 20, 16), torch.randn(2, 2, 20, 16)
    lengths = torch.tensor([20, 7])
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        torch.ops.peakward.decode_attention.default,
        (q, k, v, lengths, None, None, None),
        {"window": 8, "scale": None},
        test_utils=tests,
    )
    compiled = torch.compile(api.decode_attention_with_lse, fullgraph=True, backend="aot_eager")
    for mine, other in zip(
        compiled(q, k, v, lengths), api.decode_attention_with_lse(q, k, v, lengths), strict=True
    ):
        assert torch.equal(mine, other)


def test_the_public_calls_agree(device):
    q, pages = torch.randn(2, 4, 1, 16), torch.randn(6, 16, 2, 16)
    table = torch.tensor([[4, 1], [0, 5]], dtype=torch.int32)
    lengths = torch.tensor([30, 3])
    cache = reference.gathered(pages, table)
    contiguous = api.decode_attention(q, cache, cache, lengths)
    assert torch.equal(api.paged_decode_attention(q, pages, pages, table, lengths), contiguous)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"q": torch.zeros(2, 4, 9, 16)}, "1 to 8 queries"),
        ({"q": torch.zeros(2, 4, 1, 257)}, "head_dim from 1 to 256"),
        ({"q": torch.zeros(2, 4, 1, 16, dtype=torch.float64)}, "expected q in float32"),
        ({"q": torch.zeros(2, 3, 1, 16)}, "kv_heads to divide 3 heads, got 2"),
        ({"q": torch.zeros(1, 4, 1, 16)}, r"k and v of \(1, kv_heads, positions, 16\)"),
        ({"k": torch.zeros(2, 2, 19, 16)}, "one shape"),
        ({"k": torch.zeros(2, 2, 20, 16, dtype=torch.int8)}, "both in torch.float32 or torch.int8"),
        ({"k_scale": torch.zeros(2, 2, 20)}, "not both scales"),
        ({"lengths": torch.zeros(3, dtype=torch.int32)}, r"lengths of \(2,\)"),
        ({"lengths": torch.zeros(2)}, "int32 or int64"),
        ({"window": 0}, "window of at least 1, got 0"),
    ],
)
def test_what_it_cannot_take_is_refused(change, said):
    given = {"q": torch.zeros(2, 4, 1, 16), "lengths": None}
    given |= {"k": torch.zeros(2, 2, 20, 16), "v": torch.zeros(2, 2, 20, 16)}
    with pytest.raises(ValueError, match=said):
        api.decode_attention(**(given | change))


def test_pages_of_another_shape_are_refused():
    q, pages = torch.zeros(2, 4, 1, 16), torch.zeros(6, 16, 2, 16)
    lengths = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"block_table of \(2, max_pages\) in int32"):
        api.paged_decode_attention(q, pages, pages, torch.zeros(2, 3), lengths)
    with pytest.raises(ValueError, match="expected pages"):
        pages = torch.zeros(6, 0, 2, 16)
        table = torch.zeros(2, 3, dtype=torch.int32)
        api.paged_decode_attention(q, pages, pages, table, lengths)


def test_scales_of_another_shape_are_refused():
    q, k = torch.zeros(2, 4, 1, 16), torch.zeros(2, 2, 20, 16, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"expected v_scale of \(2, 2, 20\)"):
        api.decode_attention(q, k, k, k_scale=torch.zeros(2, 2, 20), v_scale=torch.zeros(2, 2, 1))


def test_a_quantised_cache_that_is_not_made_of_pairs_is_refused():
    q, k = torch.zeros(2, 4, 1, 16), torch.zeros(2, 2, 20, 16, dtype=torch.int8)
    scales = {"k_scale": torch.zeros(2, 2, 20), "v_scale": torch.zeros(2, 2, 20)}
    other = torch.zeros(2, 2, 16, 20, dtype=torch.int8).mT
    with pytest.raises(ValueError, match="a last stride of 1"):
        api.decode_attention(q, k, other, **scales)
    wide = torch.zeros(2, 2, 20, 17, dtype=torch.int8)
    with pytest.raises(ValueError, match="others that are even"):
        api.decode_attention(q, k, wide[..., :16], **scales)


@pytest.mark.parametrize(
    "change, said",
    [
        (
            {"q": torch.zeros(2, 4, 1, 31)},
            "head_dim that 4 divides for a cache of half bytes, got 31",
        ),
        ({"q": torch.zeros(2, 4, 1, 32)}, "k and v of 16 bytes for a head_dim of 32, got 32"),
        ({"v_scale": torch.zeros(2, 2, 20, 2, 2)}, r"v_scale of \(2, 2, 20, 2, 2\) in bfloat16"),
        ({"k_scale": torch.zeros(2, 2, 20, 1, 2).bfloat16()}, r"k_scale of \(2, 2, 20, 2, 2\)"),
        (
            {"k_scale": torch.zeros(2, 2, 20, 2, 2).bfloat16().mT},
            "the groups of a position side by side",
        ),
        ({"k_scale": None}, "the latter three with k_scale and v_scale"),
    ],
)
def test_half_bytes_that_are_stored_otherwise_are_refused(change, said):
    k, kept = reference.packed(torch.zeros(2, 2, 20, 64))
    given = {"q": torch.zeros(2, 4, 1, 64), "k": k, "v": k, "k_scale": kept, "v_scale": kept}
    with pytest.raises(ValueError, match=said):
        api.decode_attention(**(given | change))


@pytest.mark.parametrize(
    "n_groups, n_rows, span",
    [(1, 1, 1), (8, 4, 131072), (128, 4, 8192), (512, 1, 4096), (5000, 64, 100), (0, 1, 50)],
)
def test_settings_fill_a_gpu_with_pieces_worth_a_program(n_groups, n_rows, span):
    found = kernel.settings_for(
        n_groups=n_groups, n_rows=n_rows, span=span, row_bytes=256, n_multiprocessors=132
    )
    assert 1 <= found.n_splits <= bounds.MOST_SPLITS
    assert found.n_splits == 1 or span // found.n_splits >= bounds.LEAST_CHUNK
    if span >= 4096:
        # 128 KiB of such a program are on their way: a multiprocessor has one.
        programs = n_groups * found.n_splits
        assert programs / (-(-programs // 132) * 132) >= 0.75


@pytest.mark.parametrize(
    "row_bytes, item_bytes, in_pages, resident",
    [(256, 2, False, 1), (256, 2, True, 2), (128, 2, False, 2), (128, 1, False, 3)],
)
def test_a_multiprocessor_has_as_many_programs_as_fit(row_bytes, item_bytes, in_pages, resident):
    found = kernel.settings_for(
        n_groups=132,
        n_rows=1,
        span=65536,
        row_bytes=row_bytes,
        n_multiprocessors=132,
        item_bytes=item_bytes,
        in_pages=in_pages,
    )
    assert found.n_splits == resident


@pytest.mark.parametrize("shared_kib", [99, 163, 227])
@pytest.mark.parametrize("row_bytes", [128, 256, 512, 1024])
def test_what_is_on_its_way_fits_a_program(row_bytes, shared_kib):
    """Keys and values of all stages but the last, and on Hopper the keys at hand, beside queries and
    weights."""
    found = kernel.settings_for(
        n_groups=8,
        n_rows=4,
        span=8192,
        row_bytes=row_bytes,
        n_multiprocessors=132,
        shared_bytes=shared_kib << 10,
    )
    n_blocks = (found.num_stages - 1) * 2
    held = (n_blocks + (shared_kib == 227)) * found.block_positions * row_bytes
    assert n_blocks > 0
    assert held <= (shared_kib << 10) - (9 << 10)
    assert found.num_stages >= (3 if row_bytes <= 512 else 2)


@pytest.mark.parametrize("shared_kib", [99, 163, 227])
@pytest.mark.parametrize("n_rows, head_bytes", [(1, 256), (1, 1024), (64, 512), (64, 1024)])
def test_half_bytes_fit_with_what_they_are_widened_to(n_rows, head_bytes, shared_kib):
    found = kernel.settings_for(
        n_groups=8,
        n_rows=n_rows,
        span=8192,
        row_bytes=head_bytes // 4,
        n_multiprocessors=132,
        shared_bytes=shared_kib << 10,
        widened_bytes=head_bytes,
    )
    stored = (found.num_stages - 1) * 2 * found.block_positions * (head_bytes // 4)
    assert found.num_stages >= 2
    assert stored + found.block_positions * head_bytes <= (shared_kib << 10) - (9 << 10)


def test_others_are_the_rules_neighbours():
    rule = kernel.settings_for(
        n_groups=8, n_rows=4, span=8192, row_bytes=256, n_multiprocessors=132
    )
    others = kernel.others_for(rule, 8192)
    assert rule in others
    assert len(others) == len(set(others))
    assert all(1 <= each.n_splits <= 8192 // bounds.LEAST_CHUNK for each in others)
