"""With a cache the decoder says what it says without one."""

import math

import pytest
import torch

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.inference.cache import KVCache, LayerCache
from peakward.lab.models import decoder

EPS64 = torch.finfo(torch.float64).eps
SHAPES = {
    "rope": {},
    "learned": {"positions": "learned", "norm": "layernorm", "gated": False, "bias": True},
    "sinusoidal": {"positions": "sinusoidal"},
    "alibi": {"positions": "alibi"},
    "gqa": {"n_kv_heads": 2, "qkv_bias": True},
    "mqa": {"n_kv_heads": 1},
    "window": {"window": 5},
    "window of one": {"window": 1},
    "window past the end": {"window": 40},
    "window, alibi, gqa": {"window": 4, "positions": "alibi", "n_kv_heads": 2},
    "experts": {"n_experts": 4, "n_active_experts": 2},
    "tied": {"tied_head": True},
}
BATCH, PROMPT, WHOLE = 3, 9, 14


@pytest.fixture
def make(make_shape):
    """make(changes, attention): a decoder in fp64, an empty cache for it, and ids (BATCH, WHOLE)."""

    def build(changes, attention="naive"):
        shape = make_shape(**changes)
        model = decoder.build(
            shape, attention=implementation(attention), device="cpu", dtype=torch.float64, seed=0
        ).eval()
        with torch.no_grad():
            for block in model.blocks:
                block.attention.qkv.weight.mul_(8)  # So that it prefers some positions by far.
        cache = KVCache(shape, batch_size=BATCH, capacity=WHOLE, device="cpu", dtype=torch.float64)
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(shape.vocab_size, (BATCH, WHOLE), generator=generator)
        return model, cache, ids

    return build


def distance(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("attention", ["naive", "sdpa", "sdpa-math"])
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
@torch.no_grad()
def test_prefill_then_decode_is_a_forward_pass_over_all(changes, attention, make):
    model, cache, ids = make(changes, attention)
    expected = model(ids)
    found = [model(ids[:, :PROMPT], cache=cache)]
    for position in range(PROMPT, WHOLE):
        cache.length = position
        found.append(model(ids[:, position : position + 1], cache=cache))
    assert found[0].shape == (BATCH, 1, model.shape.vocab_size)
    # The same sums in another order: the bound of `lab.numerics.verify`, for the errors of both.
    bound = EPS64 * math.sqrt(16 * model.shape.n_layers + 2)
    bound = EPS64 * math.sqrt(16 * model.shape.n_layers + 2)
    assert distance(torch.cat(found, dim=1), expected[:, PROMPT - 1 :]) <= bound


@torch.no_grad()
def test_every_held_position_is_read(make):
    """A change to any one of them moves the logits, and in a window only to those within."""
    for window, read in ((None, range(WHOLE - 1)), (4, range(WHOLE - 4, WHOLE - 1))):
        model, cache, ids = make({"window": window})
        cache.fill(WHOLE - 1, seed=2)
        before = model(ids[:, -1:], cache=cache)
        moved = []
        for position in range(WHOLE - 1):
            held = cache.layers[0].values[:, :, position]
            held.add_(1)
            moved.append(not torch.equal(model(ids[:, -1:], cache=cache), before))
            held.sub_(1)
        assert [position for position, each in enumerate(moved) if each] == list(read)


@torch.no_grad()
def test_a_step_that_is_repeated_gives_the_same(make):
    model, cache, ids = make({})
    cache.fill(WHOLE - 1, seed=2)
    first = model(ids[:, -1:], cache=cache)
    model(ids[:, :1], cache=cache)
    assert cache.length == WHOLE - 1
    assert torch.equal(model(ids[:, -1:], cache=cache), first)


def test_caches_of_every_dtype_are_filled_alike(make_shape):
    wide, narrow = (
        KVCache(make_shape(), batch_size=2, capacity=8, device="cpu", dtype=dtype)
        for dtype in (torch.float64, torch.bfloat16)
    )
    for each in (wide, narrow):
        each.fill(7, seed=3)
    for mine, theirs in zip(wide.buffers(), narrow.buffers(), strict=True):
        assert torch.equal(mine.to(torch.bfloat16), theirs)
        assert torch.equal(theirs[:, :, 7], torch.zeros_like(theirs[:, :, 7]))


def test_random_keys_and_values_are_of_the_scale_of_real_ones(make_shape):
    shape = make_shape(n_layers=1, d_model=256, n_heads=4, n_kv_heads=4, head_dim=64)
    size = {"batch_size": 4, "capacity": 32, "device": "cpu", "dtype": torch.float32}
    drawn, real = KVCache(shape, **size), KVCache(shape, **size)
    drawn.fill(32, seed=0)
    model = decoder.build(
        shape, attention=implementation("naive"), device="cpu", dtype=torch.float32, seed=0
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model(torch.randint(shape.vocab_size, (4, 32), generator=generator), cache=real)
    for mine, theirs in zip(drawn.buffers(), real.buffers(), strict=True):
        assert mine.std().item() == pytest.approx(theirs.std().item(), rel=0.05)


def test_several_tokens_behind_others_are_refused():
    layer = LayerCache(torch.zeros(1, 1, 8, 2), torch.zeros(1, 1, 8, 2))
    layer.length = 3
    two = torch.ones(1, 1, 2, 2)
    with pytest.raises(ValueError, match="expected one token behind the 3 held, got 2"):
        layer.extend(two, two, window=None)
