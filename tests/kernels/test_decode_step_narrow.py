"""The fused step on a cache in int8 against fp64: attention, which writes it, and what is left for that."""

import pytest
import torch
import torch.nn.functional as F

from peakward.kernels.ops.cache_write.reference import cache_write_
from peakward.kernels.ops.decode_attention.reference import dequantized, gathered, quantized
from test_decode_step import EPS, IN_ROWS_AND_PAGES, assert_near, matrix, normed, paged
from test_decode_step_rows import CUTS, NEAR, normed_rows

launch = pytest.importorskip("peakward.kernels.ops.decode_step.triton.launch")
several = pytest.importorskip("peakward.kernels.ops.decode_step.triton.launch_several")
settings = pytest.importorskip("peakward.kernels.ops.decode_step.triton.settings")

NEAR_IN = {torch.float32: 2.0**-14, torch.bfloat16: 2.0**-7}
"""The queries are rounded to 2⁻¹⁶ of their largest element, which is some times the mean of all; weights and
outputs to their type."""


interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has it compiled")


def held_in(kind, keys, values):
    """Keys and values (sequences, kv_heads, capacity, head_dim) rounded to int8, in rows or in pages."""
    stored = [quantized(each, torch.int8) for each in (keys, values)]
    if kind == "rows":
        return launch.Held(stored[0][0], stored[1][0], stored[0][1], stored[1][1])
    pages, scales = [], []
    for elements, scale in stored:
        found, table = paged(elements.float())
        # A page of nobody is NaN, which no byte is.
        pages.append(found.nan_to_num(77).to(torch.int8))
        scales.append(paged(scale[..., None])[0][..., 0].contiguous())
    return launch.Held(*pages, *scales, table)


def of_sequences(held):
    """Keys, values and their scales as they are in rows."""
    parts = (held.keys, held.values, held.k_scale, held.v_scale)
    if held.block_table is None:
        return parts
    return tuple(gathered(each.transpose(1, 2), held.block_table) for each in parts)


def attended(q, held, position, out, *, splits=2):
    kv_heads, heads = held.kv_heads, out.shape[1]
    n_sequences = held.n_sequences
    split = settings.Split(splits=splits, block=32)
    pieces = (n_sequences * kv_heads, splits, len(q) // n_sequences * heads // kv_heads)
    arrived = torch.zeros(pieces[0], dtype=torch.int32, device=q.device)
    room = [torch.empty(*pieces, n, device=q.device) for n in (out.shape[2], 2)]
    weight = launch.Matrix(torch.zeros(8, 128, device=q.device), None, 8, 128)
    launch.attention(
        q, held, position, *room, arrived, out, then=launch.first_of(weight, 64), split=split
    )
    assert not arrived.any()


@IN_ROWS_AND_PAGES
@pytest.mark.parametrize("head_dim", [24, 32])
@pytest.mark.parametrize(
    ("kv_heads", "held_by", "n_new"),
    [(4, (150, 151), 1), (1, (63, 0), 1), (2, (100, 31), 2), (1, (61, 30), 5), (4, (29, 0), 16)],
)
def test_attention_writes_the_new_and_sees_all(
    kv_heads, held_by, n_new, head_dim, kind, dtypes, device
):
    """New keys and values are rounded bit for bit as `cache_write_` does it, those at the border of two
    pieces too; nothing else in the cache changes, and what follows them is not seen."""
    torch.manual_seed(2)
    heads, capacity, m = 4, 176, 2 * n_new
    for dtype in set(dtypes) & set(NEAR_IN):
        with torch.device("cpu"):
            new = torch.randn(m, heads + 2 * kv_heads, head_dim).to(dtype)
            new[0, heads] = 0
            held = held_in(kind, *torch.randn(2, 2, kv_heads, capacity, head_dim))
            slots = torch.tensor(held_by)[:, None] + torch.arange(n_new)
            expected = [each.clone() for each in of_sequences(held)]
            of_tokens = new[:, heads:].view(2, n_new, -1, head_dim).transpose(1, 2)
            k, v = of_tokens.split(kv_heads, 1)
            scales = {"k_scale": expected[2], "v_scale": expected[3]}
            cache_write_(expected[0], expected[1], k, v, slots, **scales)
        held = launch.Held(*(None if each is None else each.to(device) for each in held))
        out = torch.empty(m, heads, head_dim, dtype=dtype)
        attended(new.to(device), held, torch.tensor(held_by), out)
        for found, each in zip(of_sequences(held), expected, strict=True):
            assert torch.equal(found.cpu(), each)
        pairs = zip(expected[:2], expected[2:], strict=True)
        k, v = (dequantized(*each, torch.float64) for each in pairs)
        for row in range(m):
            sequence, kept = row // n_new, held_by[row // n_new] + row % n_new + 1
            exact = F.scaled_dot_product_attention(
                new[row, :heads, None].double(), k[sequence, :, :kept], v[sequence, :, :kept],
                enable_gqa=True,
            )  # fmt: skip
            assert_near(out[row].cpu(), exact[:, 0], NEAR_IN[dtype])


@interpreted
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN")
def test_what_is_not_finite_is_handed_on():
    """Of a query to its own output; of a value to its scale and so to all queries that see it."""
    q = torch.randn(1, 8, 32)
    q[0, 0, 3], q[0, 7, 3] = torch.inf, torch.nan
    held, out = held_in("rows", *torch.randn(2, 1, 2, 64, 32)), torch.empty(1, 4, 32)
    attended(q, held, torch.tensor([40]), out)
    assert out.isfinite().all(-1).tolist() == [[False, True, False, False]]
    assert held.v_scale.isnan().nonzero().tolist() == [[0, 1, 40]]


@interpreted
@pytest.mark.parametrize("n_new", [1, 2])
def test_rotated_leaves_keys_and_values_behind_the_queries(n_new):
    """Those of one row and of several are those that a cache in the model's type holds."""
    torch.manual_seed(3)
    heads, kv_heads, head_dim, capacity, held_by = 4, 2, 8, 32, [4]
    weight, whole = matrix((heads + 2 * kv_heads) * head_dim, 128, "dense")
    x, gain, bias = torch.randn(n_new, 128), torch.rand(128) + 0.5, torch.randn(weight.n)
    cos, sin = (torch.randn(capacity, head_dim // 2) for _ in range(2))
    held = held_in("rows", *torch.zeros(2, 1, kv_heads, capacity, head_dim))
    q = torch.empty(n_new, heads + 2 * kv_heads, head_dim)
    at = (weight, bias, cos, sin, torch.tensor(held_by), q, held)
    if n_new == 1:
        cut = settings.cut_for(n=weight.n, k=weight.k, per_word=weight.per_word)
        launch.rotated(x, gain, EPS, *at, cut=cut, n_programs=2)
    else:
        several.rotated(normed_rows(x, gain), *at, cut=CUTS["warps share rows"])
    exact = (normed(x, gain) @ whole.T + bias).view(n_new, -1, head_dim)
    angles = [each[held_by[0] : held_by[0] + n_new, None].double() for each in (cos, sin)]
    low, high = exact[:, : heads + kv_heads].chunk(2, -1)
    turned = (low * angles[0] - high * angles[1], high * angles[0] + low * angles[1])
    exact = torch.cat((torch.cat(turned, -1), exact[:, heads + kv_heads :]), 1)
    assert_near(q, exact, 3 * NEAR)
    for each in of_sequences(held):
        assert not each.any()
