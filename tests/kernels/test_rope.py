"""The RoPE kernel against its reference in fp64, beside the reference decoder's rotation."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from oracle import assert_as_close_as, assert_same_specials
from peakward.kernels.ops.rope import reference
from peakward.kernels.ops.rope.api import rope, rope_, rope_qkv_
from peakward.kernels.ops.rotation.api import rotate
from rows import poisoned
from tiers import drawn_in_full

pytest.importorskip("peakward.kernels.ops.rope.triton")

SHAPES = st.sampled_from(
    [(1, 1, 17, 16), (2, 3, 5, 40), (1, 4, 127, 6), (3, 2, 1, 64), (0, 2, 3, 4)]
)
LAYOUTS = st.sampled_from(["heads first", "positions first", "batch last", "steps of two", "slice"])


def drawn(shape, layout, dtype):
    batch, heads, seq_len, head_dim = shape
    if layout == "positions first":
        return torch.randn(batch, seq_len, heads, head_dim).to(dtype).transpose(1, 2)
    if layout == "batch last":
        return torch.randn(seq_len, heads, batch, head_dim).to(dtype).permute(2, 1, 0, 3)
    if layout == "steps of two":
        return torch.randn(batch, heads, seq_len, 2 * head_dim).to(dtype)[..., ::2]
    if layout == "slice":
        packed = torch.randn(batch, seq_len, heads + 3, head_dim).to(dtype)
        return packed[:, :, 1 : heads + 1].transpose(1, 2)
    return torch.randn(shape).to(dtype)


def angles(shape, dtype, by_batch=False):
    batch, _, seq_len, head_dim = shape
    angle = torch.randn(*((batch,) if by_batch else ()), seq_len, head_dim // 2) * 10
    return angle.cos().to(dtype), angle.sin().to(dtype)


@drawn_in_full(15)
@given(shape=SHAPES, layout=LAYOUTS, by_batch=st.booleans(), seed=st.integers(0, 99))
@example(shape=(2, 3, 5, 40), layout="positions first", by_batch=True, seed=0)
@example(shape=(1, 4, 127, 6), layout="steps of two", by_batch=False, seed=0)
def test_is_as_close_to_fp64_as_the_decoders_rotation(
    device, dtypes, shape, layout, by_batch, seed
):
    torch.manual_seed(seed)
    for dtype in dtypes:
        x, gradient = (drawn(shape, layout, dtype).requires_grad_() for _ in range(2))
        cos, sin = angles(shape, dtype, by_batch)
        wide = [each.double() for each in (cos, sin)]
        with poisoned():
            y = rope(x, cos, sin)
            (back,) = torch.autograd.grad(y, x, gradient)
        by_head = [each.unsqueeze(-3) if by_batch else each for each in (cos, sin)]
        theirs = rotate(x, *by_head)
        assert_as_close_as(theirs, y, reference.rope(x.double(), *wide))
        (theirs,) = torch.autograd.grad(theirs, x, gradient)
        assert_as_close_as(theirs, back, reference.rope(gradient.double(), *wide, inverse=True))
        copy = x.detach().clone(memory_format=torch.preserve_format)
        assert rope_(copy, cos, sin) is copy
        assert torch.equal(copy, y)


@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("width", [20, 40])
def test_each_element_may_have_an_angle_of_its_own(device, dtypes, by_batch, neighbours, width):
    for dtype in dtypes:
        x, gradient = (drawn((2, 3, 5, 40), "positions first", dtype) for _ in range(2))
        x.requires_grad_()
        shape = (*((2,) if by_batch else ()), 5, width)
        cos, sin = (torch.randn(shape).to(dtype) for _ in range(2))
        with poisoned():
            y = rope(x, cos, sin, neighbours=neighbours)
            (back,) = torch.autograd.grad(y, x, gradient)
        wide, by_head = (
            [each.unsqueeze(-3) if by_batch else each for each in (cos.to(kind), sin.to(kind))]
            for kind in (torch.float64, dtype)
        )
        exact, theirs = (
            written_out(x.to(each[0].dtype), *each, neighbours) for each in (wide, by_head)
        )
        assert_as_close_as(theirs, y, exact)
        (their_back,) = torch.autograd.grad(theirs, x, gradient)
        how = {"inverse": True, "neighbours": neighbours}
        exact_back = reference.rope(gradient.double(), cos.double(), sin.double(), **how)
        (again,) = torch.autograd.grad(exact, x, gradient.double())
        torch.testing.assert_close(again, exact_back.to(dtype))
        assert_as_close_as(their_back, back, exact_back)


def written_out(x, cos, sin, neighbours):
    """As transformers' Llama; neighbours as its Cohere."""
    narrow = cos.shape[-1] < x.shape[-1]
    if neighbours:
        pairs = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        cos, sin = (each.repeat_interleave(2, -1) if narrow else each for each in (cos, sin))
        return x * cos + pairs * sin
    low, high = x.chunk(2, dim=-1)
    cos, sin = (torch.cat((each, each), -1) if narrow else each for each in (cos, sin))
    return x * cos + torch.cat((-high, low), dim=-1) * sin


@pytest.mark.parametrize("seq_len", [1, 17])
def test_turns_queries_and_keys_inside_a_fused_projection(device, dtypes, seq_len):
    heads = {"n_heads": 4, "n_kv_heads": 2}
    for dtype in dtypes:
        x = torch.randn(2, seq_len, 8 * 16).to(dtype).requires_grad_()
        x.data[..., -1] = torch.inf  # A value, which stays.
        gradient = torch.randn_like(x)
        cos, sin = angles((2, 6, seq_len, 16), dtype)

        def turned(x, cos, sin):
            packed = x.unflatten(-1, (8, 16)).transpose(1, 2)
            all_ = reference.rope(packed, cos, sin, n_turned=6)
            return all_.transpose(1, 2).flatten(-2)

        qkv = x * 1.0
        at = qkv.data_ptr()
        y = rope_qkv_(qkv, cos, sin, **heads)
        assert y.data_ptr() == at
        assert torch.equal(y, qkv)
        (back,) = torch.autograd.grad(y, x, gradient)
        theirs = turned(x, cos, sin)
        exact = turned(x.double(), cos.double(), sin.double())
        finite = slice(0, 127)
        assert_as_close_as(theirs[..., finite], y[..., finite], exact[..., finite])
        assert bool(y[..., -1].isinf().all())
        assert torch.equal(y[..., 96:], x[..., 96:])
        (theirs,) = torch.autograd.grad(theirs, x, gradient)
        (exact,) = torch.autograd.grad(exact, x, gradient.double())
        assert_as_close_as(theirs, back, exact.double())


def test_specials_stand_where_the_decoder_has_them(device, dtypes):
    for dtype in dtypes:
        x = torch.randn(1, 2, 3, 8).to(dtype)
        x[0, 0, 0, 1], x[0, 0, 1, 6], x[0, 1, 2, 3] = torch.nan, torch.inf, -torch.inf
        cos, sin = angles(x.shape, dtype)
        assert_same_specials(rotate(x, cos, sin), rope(x, cos, sin))


@pytest.mark.full
def test_is_as_transformers_turns(device):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16)
    cos, sin = angles((2, 4, 9, 16), torch.float32, by_batch=True)
    twice = [torch.cat((each, each), -1) for each in (cos, sin)]
    for mine, theirs in zip((q, k), llama.apply_rotary_pos_emb(q, k, *twice), strict=True):
        torch.testing.assert_close(rope(mine, cos, sin), theirs)


def test_is_an_operator_that_torch_can_compile(device):
    x = torch.randn(2, 3, 5, 8, requires_grad=True)
    cos, sin = angles(x.shape, torch.float32)
    ops = torch.ops.peakward
    torch.library.opcheck(ops.rope.default, (x, cos, sin, 2, True, False))
    torch.library.opcheck(ops.rope_.default, (x.detach().clone(), cos, sin, 3))
    weight = torch.randn(8, 8 * 8, requires_grad=True)

    def projected(x, weight):
        return rope_qkv_(x.flatten(0, 1) @ weight, cos, sin, n_heads=4, n_kv_heads=2).sin()

    gradient = torch.randn(6, 5, 64)
    compiled = torch.compile(projected, fullgraph=True, backend="aot_eager")
    found = [
        torch.autograd.grad(function(x, weight), (x, weight), gradient)
        for function in (compiled, projected)
    ]
    for mine, same in zip(*found, strict=True):
        torch.testing.assert_close(mine, same)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, weight), projected(x, weight))


def test_compiled_it_turns_an_input_in_place_too(device):
    x = torch.randn(2, 3, 5, 8)
    cos, sin = angles(x.shape, torch.float32)
    compiled = torch.compile(rope_, fullgraph=True, backend="aot_eager")
    expected = rope(x, cos, sin)
    compiled(x, cos, sin)
    assert torch.equal(x, expected)


def test_says_what_it_cannot_take(device):
    x = torch.randn(1, 2, 3, 8)
    cos, sin = angles(x.shape, torch.float32)
    with pytest.raises(ValueError, match="expected cos of shape"):
        rope(x, cos[:2], sin)
    with pytest.raises(ValueError, match="an even head_dim"):
        rope(x[..., :7], cos, sin)
    with pytest.raises(ValueError, match="expected x in float32"):
        rope(x.double(), cos, sin)
    with pytest.raises(ValueError, match="rope_qkv_: expected"):
        rope_qkv_(torch.randn(1, 3, 50), cos, sin, n_heads=4, n_kv_heads=2)
    for turn, name in ((rope, "rope"), (rope_, "rope_")):
        with pytest.raises(ValueError, match=rf"{name}: expected x of \(batch, heads, seq_len"):
            turn(x[0], cos, sin)
        for n_turned in (-1, 3):
            with pytest.raises(ValueError, match=f"from 0 to the 2 heads, got {n_turned}"):
                turn(x, cos, sin, n_turned=n_turned)
    with pytest.raises(ValueError, match="rope_: expected x whose elements lie apart"):
        rope_(x[:, :1].expand(1, 2, 3, 8), cos, sin)
    for n_heads, n_kv_heads in ((0, 0), (-2, 4), (4, 0)):
        with pytest.raises(ValueError, match=f"at least 1, got {n_heads} and {n_kv_heads}"):
            rope_qkv_(torch.randn(1, 3, 48), cos, sin, n_heads=n_heads, n_kv_heads=n_kv_heads)


def test_of_nothing_there_is_nothing(device):
    cos, sin = angles((0, 2, 3, 8), torch.float32)
    assert rope_(torch.empty(0, 2, 3, 8), cos, sin).shape == (0, 2, 3, 8)
    for qkv in (torch.empty(0, 3, 48), torch.empty(0, 3, 48, requires_grad=True) * 1):
        assert rope_qkv_(qkv, cos, sin, n_heads=2, n_kv_heads=2).shape == (0, 3, 48)
