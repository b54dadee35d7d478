"""The fused kernels of a step of decode with several rows against fp64, in Triton's interpreter on a CPU."""

import pytest
import torch
import torch.nn.functional as F

from test_decode_step import (
    EPS,
    FORMATS,
    IN_ROWS_AND_PAGES,
    assert_near,
    held_in,
    matrix,
    normed,
    of_sequences,
)

launch = pytest.importorskip("peakward.kernels.ops.decode_step.triton.launch")
several = pytest.importorskip("peakward.kernels.ops.decode_step.triton.launch_several")
settings = pytest.importorskip("peakward.kernels.ops.decode_step.triton.settings")

NEAR = 2.0**-20
CUTS = {
    "warps share rows": settings.RowsCut(32, 128, stages=2),
    "warps share columns": settings.RowsCut(16, 128, parts=2, stages=2, warps=2),
    "programs share columns": settings.RowsCut(32, 128, stages=2, splits=2),
}
every_cut = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)


def normed_rows(x, gain):
    """What a kernel before leaves of x, in two blocks."""
    found = several.normed_of(x, EPS, 2)
    found.rows.copy_(x * gain)
    half = x.shape[1] // 2
    found.squares[0, : len(x)] = x[:, :half].square().sum(1)
    found.squares[1, : len(x)] = x[:, half:].square().sum(1)
    return found


@every_cut
@pytest.mark.parametrize("m", [3, 11])
@pytest.mark.parametrize(
    ("format_", "n", "k"), [("dense", 50, 130), ("int8", 37, 132), ("int4", 40, 384)]
)
def test_added(format_, n, k, m, cut):
    """The residual, and the norm behind it: a product that takes it is that of the norm."""
    torch.manual_seed(0)
    held, whole = matrix(n, k, format_)
    x, gain, residual = torch.randn(m, k), torch.rand(n) + 0.5, torch.randn(m, n)
    out = residual.clone()
    to = several.normed_of(out, EPS, -(-n // cut.block))
    then = several.first_of(held, cut, 64)
    pieces = several.pieces_of(out, cut)
    several.added(x, held, out, gain, to, pieces=pieces, then=then, cut=cut)
    assert not pieces.arrived.any()
    exact = residual + x.double() @ whole.T
    assert_near(out, exact, NEAR)
    behind, of_behind = matrix(20, n, "dense")
    logits = torch.empty(m, 20)
    several.logits(to, behind, logits, cut=cut)
    assert_near(logits, normed(exact, gain) @ of_behind.T, NEAR)


@every_cut
@pytest.mark.parametrize("format_", FORMATS)
def test_gated(format_, cut):
    torch.manual_seed(1)
    held, whole = matrix(48, 256, format_)
    x, gain, out = torch.randn(5, 256), torch.rand(256) + 0.5, torch.empty(5, 24)
    then = several.first_of(held, cut, 64)
    several.gated(normed_rows(x, gain), held, out, then=then, cut=cut)
    gate, up = (normed(x, gain) @ whole.T).chunk(2, -1)
    assert_near(out, F.silu(gate) * up, 3 * NEAR)


@every_cut
@IN_ROWS_AND_PAGES
@pytest.mark.parametrize("n_new", [1, 2])
def test_rotated(n_new, kind, cut):
    """Queries, keys and values of two sequences turn at their own positions, and those of a sequence stand
    beside one another."""
    torch.manual_seed(3)
    heads, kv_heads, head_dim, capacity, held_by = 4, 2, 8, 32, [4, 15]
    held, whole = matrix((heads + 2 * kv_heads) * head_dim, 128, "dense")
    m = 2 * n_new
    x, gain, bias = torch.randn(m, 128), torch.rand(128) + 0.5, torch.randn(held.n)
    cos, sin = (torch.randn(capacity, head_dim // 2) for _ in range(2))
    q = torch.empty(m, heads, head_dim)
    kept = held_in(kind, *(torch.zeros(2, kv_heads, capacity, head_dim) for _ in range(2)))
    several.rotated(
        normed_rows(x, gain), held, bias, cos, sin, torch.tensor(held_by), q, kept, cut=cut
    )
    keys, values = of_sequences(kept)
    exact = (normed(x, gain) @ whole.T + bias).view(m, -1, head_dim)
    exact_q, exact_k, exact_v = exact.split((heads, kv_heads, kv_heads), 1)
    for row in range(m):
        sequence, position = row // n_new, held_by[row // n_new] + row % n_new
        c, s = cos[position].double(), sin[position].double()
        q_low, q_high = exact_q[row].chunk(2, -1)
        k_low, k_high = exact_k[row].chunk(2, -1)
        turned_q = torch.cat((q_low * c - q_high * s, q_high * c + q_low * s), -1)
        turned_k = torch.cat((k_low * c - k_high * s, k_high * c + k_low * s), -1)
        assert_near(q[row], turned_q, 3 * NEAR)
        assert_near(keys[sequence, :, position], turned_k, 3 * NEAR)
        assert_near(values[sequence, :, position], exact_v[row], 3 * NEAR)
    for each in (keys, values):
        assert int((each.abs().sum((1, 3)) > 0).sum()) == m


def test_embedded():
    torch.manual_seed(4)
    table, gain, ids = torch.randn(9, 1500), torch.rand(1500) + 0.5, torch.tensor([7, 0, 7])
    out = torch.empty(3, 1500)
    to = several.normed_of(out, EPS, several.embedding_blocks(1500))
    several.embedded(ids, table, out, gain, to)
    assert torch.equal(out, table[ids])
    assert torch.equal(to.rows, table[ids] * gain)
    torch.testing.assert_close(to.squares.sum(0)[:3], out.square().sum(1))
    assert not to.squares[:, 3:].any()


@IN_ROWS_AND_PAGES
@pytest.mark.parametrize("n_new", [2, 5])
@pytest.mark.parametrize(("kv_heads", "held_by"), [(4, (100, 31)), (1, (61, 0))])
def test_attention_of_several_new_tokens(kv_heads, held_by, n_new, kind):
    """Each sees the positions up to its own: at 61 and 31 some see nothing of the second piece."""
    torch.manual_seed(2)
    heads, head_dim, capacity = 4, 24, 160
    q = torch.randn(2 * n_new, heads, head_dim)
    k, v = (torch.randn(2, kv_heads, capacity, head_dim) for _ in range(2))
    split = settings.Split(splits=2, block=32)
    pieces = (2 * kv_heads, split.splits, n_new * heads // kv_heads)
    out, arrived = torch.empty_like(q), torch.zeros(2 * kv_heads, dtype=torch.int32)
    held, _ = matrix(8, 128, "dense")
    launch.attention(
        q, held_in(kind, k, v), torch.tensor(held_by), torch.empty(*pieces, head_dim),
        torch.empty(*pieces, 2), arrived, out, then=launch.first_of(held, 64), split=split,
    )  # fmt: skip
    for row in range(2 * n_new):
        sequence, kept = row // n_new, held_by[row // n_new] + row % n_new + 1
        exact = F.scaled_dot_product_attention(
            q[row, :, None].double(),
            k[sequence, :, :kept].double(),
            v[sequence, :, :kept].double(),
            enable_gqa=True,
        )
        assert_near(out[row], exact[:, 0], NEAR)
    assert not arrived.any()


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("format_", ["dense", "int4"])
def test_the_first_columns_of_all_rows_are_brought_ahead(format_, splits):
    """Each run begins where a program does."""
    held, _ = matrix(32, 512, format_)
    cut = settings.RowsCut(16, 128, splits=splits)
    asked = held.stored.nbytes // 2
    found = several.first_of(held, cut, asked)
    assert found.parts * found.n_bytes == asked
    assert found.parts * found.stride == held.stored.nbytes
    assert several.first_of(held, cut, 2 * held.stored.nbytes).n_bytes <= found.stride
