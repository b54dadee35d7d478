"""The fused kernels of a step of decode against fp64, in Triton's interpreter on a CPU."""

import pytest
import torch
import torch.nn.functional as F

from peakward.kernels.ops.decode_attention.reference import gathered
from peakward.kernels.ops.quantized_matmul import calibrated, reference

launch = pytest.importorskip("peakward.kernels.ops.decode_step.triton.launch")
settings = pytest.importorskip("peakward.kernels.ops.decode_step.triton.settings")

EPS = 1e-5
FORMATS = ("dense", "int8", "int4")


def matrix(n, k, format_, dtype=torch.float32):
    """A matrix as it is stored, and what it means in fp64."""
    return stored(torch.randn(n, k) / k**0.5, format_, dtype)


def stored(drawn, format_, dtype=torch.float32):
    """These numbers (n, k) in a format, and what they mean there in fp64."""
    n, k = drawn.shape
    if format_ == "dense":
        return launch.Matrix(drawn.to(dtype), None, n, k), drawn.to(dtype).double()
    if format_ == "int8":
        held, scale = reference.int8_weight(drawn)
        return launch.Matrix(held, scale, n, k), reference.int8_dequantized(
            held, scale, torch.float64
        )
    # All 16 numbers, and scales of either sign.
    held, scale = calibrated.int4_weight(drawn, torch.eye(k), group=128)
    scale = scale.half()  # Kernels read 16 bits; the interpreter computes bf16 wrongly.
    whole = reference.int4_dequantized(held, scale, None, torch.float64, group=128)
    return launch.Matrix(held, scale, n, k), whole


def cut(held):
    return settings.cut_for(n=held.n, k=held.k, per_word=held.per_word)


def bound(held, by=None):
    """Beside quantised weights activations are in 16 bits, √k / 63,000 of their norm at most with k elements
    of a lane (`held`); else sums are in fp32."""
    if held.scale is None:
        return 2.0**-20
    of_lane = 4 * held.per_word * (by or cut(held)).chunks(held.k, held.per_word)
    return min(of_lane, held.k) ** 0.5 / 63_000


def normed(x, gain):
    return F.rms_norm(x.double(), x.shape[-1:], gain.double(), EPS)


def assert_near(got, exact, most):
    assert float((got.double() - exact).norm() / exact.norm()) < most


@pytest.mark.parametrize("n_pairs", [1, 8, 12, 32, 128, 600])
def test_a_piece_of_attention_has_one_block_where_so_few_programs_can_have_all(n_pairs):
    """Whatever the capacity: that of a text is seldom a power of two. A piece is of whole sixteens."""
    for capacity in range(1, 20_000, 7):
        split = settings.split_for(n_pairs=n_pairs, capacity=capacity, n_multiprocessors=132)
        assert split.splits in (1, 2, 4, 8, 16, 32)
        piece = 16 * -(-capacity // split.splits // 16)
        n_programs = n_pairs * split.splits
        if split.stages == 1:
            assert piece <= split.block
            assert split.splits == 1 or n_programs <= 2 * 132
            assert split.splits == 1 or piece > split.block // 4
        else:
            assert split.splits == 1 or n_programs <= 4 * 132
            # Twice as many pieces would be too many.
            assert split.splits == 32 or 2 * n_programs > 4 * 132


@pytest.mark.parametrize(
    ("format_", "n", "k"), [("dense", 50, 130), ("int8", 37, 132), ("int4", 40, 384)]
)
def test_products(format_, n, k):
    torch.manual_seed(0)
    held, whole = matrix(n, k, format_)
    x, gain = torch.randn(1, k), torch.rand(k) + 0.5
    how = {"cut": cut(held), "n_programs": 2, "then": launch.first_of(held, 64)}
    residual = torch.randn(1, n)
    out = residual.clone()
    launch.product(x, None, EPS, held, out, adds=True, **how)
    assert_near(out, residual + x.double() @ whole.T, bound(held))
    launch.product(x, gain, EPS, held, out, adds=False, **how)
    assert_near(out, normed(x, gain) @ whole.T, bound(held))


def product_of(x, gain, held, by):
    """The product by two programs, in fp32."""
    out = torch.zeros(1, held.n)
    launch.product(
        x, gain, EPS, held, out, adds=False, then=launch.first_of(held, 64), cut=by, n_programs=2
    )
    return out


@pytest.mark.parametrize("format_", FORMATS)
def test_products_in_several_chunks(format_, device, dtypes):
    """The last chunk is not whole, nor is the last block, and a program has two of these."""
    torch.manual_seed(4)
    for dtype in dtypes:
        per_word = {"int8": 4, "int4": 8}.get(format_, 4 // dtype.itemsize)
        k = 2 * (4 * 32 * per_word) + {"dense": 34, "int8": 132, "int4": 384}[format_]
        held, whole = matrix(21, k, format_, dtype)
        x, gain = torch.randn(1, k).to(dtype), (torch.rand(k) + 0.5).to(dtype)
        for depth in (1, 2, 3):
            by = settings.Cut(8, 32, depth, ahead=0, warps=4)
            assert by.chunks(k, per_word) == 3
            assert_near(product_of(x, None, held, by), x.double() @ whole.T, bound(held, by))
            assert_near(product_of(x, gain, held, by), normed(x, gain) @ whole.T, bound(held, by))


@pytest.mark.parametrize("size", [1e-15, 1e30])
@pytest.mark.parametrize("format_", FORMATS)
def test_an_element_beyond_all_others_rounds_those_of_its_lane_alone(format_, size, device):
    """Other lanes hold nothing, and others usual numbers; even rows do not read the element."""
    torch.manual_seed(5)
    drawn = torch.randn(16, 1024)
    drawn[::2, 5] = 0
    held, whole = stored(drawn, format_)
    x = torch.randn(1, 1024) * size * 1e-9
    x[:, :128] = 0
    x[0, 5] = size
    found, exact = product_of(x, None, held, cut(held)), x.double() @ whole.T
    for rows in (slice(0, None, 2), slice(1, None, 2)):
        assert_near(found[:, rows], exact[:, rows], bound(held))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_of_a_lane_fit_into_32_bits(sign, device):
    """The sums of int8 are whole numbers. All are as large as can be here, in 512 columns of a lane."""
    held, whole = stored(torch.ones(8, 512 * 32), "int8")
    by = settings.Cut(8, 32, 1, ahead=0, warps=4)
    x = torch.full((1, held.k), float(sign))
    assert_near(product_of(x, None, held, by), x.double() @ whole.T, 2.0**-20)


@pytest.mark.parametrize("n", [1024, 4096, 8192, 65_536])
def test_no_lane_is_given_more(n):
    for k in range(128, 131_072 + 1, 128):
        assert 4 * 4 * settings.cut_for(n=n, k=k, per_word=4).chunks(k, 4) <= 512


@pytest.mark.parametrize("format_", FORMATS)
def test_gated(format_):
    torch.manual_seed(1)
    held, whole = matrix(24, 256, format_)
    x, gain, out = torch.randn(1, 256), torch.rand(256) + 0.5, torch.empty(1, 12)
    then = launch.first_of(held, 64, halves=True)
    launch.gated(x, gain, EPS, held, out, then=then, cut=cut(held), n_programs=2)
    gate, up = (normed(x, gain) @ whole.T).chunk(2, -1)
    assert_near(out, F.silu(gate) * up, 3 * bound(held))


def paged(cache, page_size=16):
    """The same keys or values in pages (pages, kv_heads, page_size, head_dim), in an order of chance with
    one of nobody, and the table."""
    n_sequences, kv_heads, capacity, head_dim = cache.shape
    n = capacity // page_size
    order = torch.randperm(n_sequences * n, generator=torch.Generator().manual_seed(1)) + 1
    pages = torch.full((n_sequences * n + 1, kv_heads, page_size, head_dim), torch.nan)
    pages[order] = cache.unflatten(2, (n, page_size)).transpose(1, 2).flatten(0, 1)
    return pages, order.view(n_sequences, n).int()


def held_in(kind, keys, values):
    if kind == "rows":
        return launch.Held(keys, values)
    pages, table = paged(keys)
    return launch.Held(pages, paged(values)[0], block_table=table)


def of_sequences(held):
    """Keys and values as they are in rows."""
    if held.block_table is None:
        return held.keys, held.values
    return tuple(
        gathered(each.transpose(1, 2), held.block_table) for each in (held.keys, held.values)
    )


IN_ROWS_AND_PAGES = pytest.mark.parametrize("kind", ["rows", "pages"])


@IN_ROWS_AND_PAGES
@pytest.mark.parametrize("format_", FORMATS)
def test_rotated(format_, kind):
    """One query head and one of keys, whose halves turn against each other at the row's position."""
    torch.manual_seed(3)
    head_dim, capacity, position = 8, 48, 20
    held, whole = matrix(3 * head_dim, 128, format_)
    x, gain, bias = torch.randn(1, 128), torch.rand(128) + 0.5, torch.randn(3 * head_dim)
    cos, sin = (torch.randn(capacity, head_dim // 2) for _ in range(2))
    q = torch.empty(1, 1, head_dim)
    kept = held_in(kind, *(torch.zeros(1, 1, capacity, head_dim) for _ in range(2)))
    launch.rotated(
        x, gain, EPS, held, bias, cos, sin, torch.tensor([position]), q, kept,
        cut=cut(held), n_programs=2,
    )  # fmt: skip
    exact = (normed(x, gain) @ whole.T + bias).view(3, head_dim)
    low, high = exact[:2].chunk(2, -1)
    c, s = cos[position].double(), sin[position].double()
    turned = torch.cat((low * c - high * s, high * c + low * s), -1)
    most = 3 * bound(held)
    keys, values = of_sequences(kept)
    assert_near(q[0, 0], turned[0], most)
    assert_near(keys[0, 0, position], turned[1], most)
    assert_near(values[0, 0, position], exact[2], most)
    for each in (keys, values):
        assert each.abs().sum((0, 1, 3)).nonzero().tolist() == [[position]]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_value_that_is_not_finite_is_handed_on(format_, bad, device):
    held, _ = matrix(8, 256, format_)
    x, gain = torch.randn(1, 256), torch.ones(256)
    x[0, 5] = bad
    assert not product_of(x, None, held, cut(held)).isfinite().any()
    assert not product_of(x, gain, held, cut(held)).isfinite().any()


@pytest.mark.parametrize(("format_", "halves"), [("dense", False), ("int8", True), ("int4", True)])
def test_what_is_brought_ahead_is_of_the_first_rows(format_, halves):
    """Each run lies in the matrix, and begins where a half of it does."""
    held, _ = matrix(32, 256, format_)
    asked = 4 * 256
    found = launch.first_of(held, asked, halves=halves)
    whole_bytes = held.stored.nbytes
    assert 0 < found.parts * found.n_bytes <= asked
    assert found.parts * found.stride == whole_bytes
    assert found.n_bytes <= found.stride
    assert found.n_bytes % 16 == found.stride % 16 == 0
    assert launch.first_of(held, 2 * whole_bytes, halves=halves).n_bytes == found.stride


@IN_ROWS_AND_PAGES
@pytest.mark.parametrize(("kv_heads", "position"), [(4, 150), (1, 63), (2, 0)])
def test_attention(kv_heads, position, kind):
    torch.manual_seed(2)
    heads, head_dim, capacity, rows = 4, 24, 160, 2
    q = torch.randn(rows, heads, head_dim)
    k, v = (torch.randn(rows, kv_heads, capacity, head_dim) for _ in range(2))
    split = settings.Split(splits=2, block=32)
    pieces = (rows * kv_heads, split.splits, heads // kv_heads)
    out, arrived = torch.empty_like(q), torch.zeros(rows * kv_heads, dtype=torch.int32)
    held, _ = matrix(8, 128, "dense")
    launch.attention(
        q, held_in(kind, k, v), torch.full((rows,), position), torch.empty(*pieces, head_dim),
        torch.empty(*pieces, 2), arrived, out, then=launch.first_of(held, 64), split=split,
    )  # fmt: skip
    kept = slice(0, position + 1)
    exact = F.scaled_dot_product_attention(
        q.double()[:, :, None], k.double()[:, :, kept], v.double()[:, :, kept], enable_gqa=True
    )
    assert_near(out, exact[:, :, 0], 2.0**-20)
    assert not arrived.any()
