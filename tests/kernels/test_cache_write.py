"""What is written is what torch's operators write, bit for bit, and nothing else is touched."""

from types import SimpleNamespace

import pytest
import torch

from peakward.kernels.ops.cache_write import api
from peakward.kernels.ops.cache_write.api import cache_write_, takes
from peakward.kernels.ops.cache_write.reference import cache_write_ as by_torch
from peakward.kernels.ops.decode_attention.reference import layout

pytest.importorskip("triton")
STORED = {"as it is": None, "int8": torch.int8, "e4m3": torch.float8_e4m3fn, "int4": torch.uint8}
PAGE_SIZE = 4
KINDS = pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
SLOTS = torch.tensor([[9, 3, 4], [0, 7, 11]])
"""The slots of three tokens of two sequences."""
TABLE = torch.tensor([[5, 0, 3], [1, 6, 2]], dtype=torch.int32)


def cache(stored, dtype, head_dim, *, in_pages, kv_heads=3):
    """Keys, values and scales in the middle of larger tensors, full of ones."""
    size = (7, PAGE_SIZE, kv_heads) if in_pages else (2, kv_heads, 12)
    width, of_scale, scale_dtype = layout(head_dim, stored) if stored else (head_dim, None, None)
    ones = [torch.ones((3, *size, width)).to(stored or dtype)[1] for _ in range(2)]
    if stored:
        ones += [torch.ones((3, *size, *of_scale), dtype=scale_dtype)[1] for _ in range(2)]
    names = ("keys", "values", "k_scale", "v_scale")
    return dict(zip(names, ones, strict=False))


def drawn(dtype, head_dim, *, offset=0.0, kv_heads=3):
    """Keys and values of a packed projection: views with strides of their own."""
    torch.manual_seed(4)
    packed = torch.randn(2, 3, 3 * kv_heads, head_dim).to(dtype) + offset
    packed[0, 1] = 0
    packed[1, 2, :, 0] = 30000.0
    return packed.transpose(1, 2)[:, kv_heads:].split(kv_heads, dim=1)


def bits(x):
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])


@KINDS
@pytest.mark.parametrize("in_pages", [False, True], ids=["rows", "pages"])
@pytest.mark.parametrize("head_dim, offset", [(64, 0.0), (80, 0.0), (96, 50.0), (12, 0.0)])
def test_it_writes_what_torch_writes(stored, in_pages, head_dim, offset, dtypes, device):
    for dtype in dtypes:
        k, v = drawn(dtype, head_dim, offset=offset)
        table = {"block_table": TABLE.to(device)} if in_pages else {}
        found, expected = (cache(stored, dtype, head_dim, in_pages=in_pages) for _ in range(2))
        cache_write_(k=k, v=v, slots=SLOTS.to(device), **found, **table)
        by_torch(k=k, v=v, slots=SLOTS.to(device), **expected, **table)
        for name, each in expected.items():
            assert not (each.float() == 1).all()
            assert torch.equal(bits(found[name]), bits(each)), (dtype, name)


@pytest.mark.parametrize("stored", [torch.int8, torch.uint8], ids=["int8", "int4"])
def test_what_is_not_a_number_stays_none(stored, device):
    k, v = (each.clone() for each in drawn(torch.float32, 64))
    k[0, 0, 0, 5] = torch.nan
    found = cache(stored, torch.float32, 64, in_pages=False)
    cache_write_(k=k, v=v, slots=SLOTS.to(device), **found)
    assert found["k_scale"][0, 0, 9].isnan().any()
    assert not found["k_scale"][0, 1].isnan().any() and not found["v_scale"].isnan().any()


def test_what_the_kernel_is_taken_for(monkeypatch):
    """Elsewhere a cache is written by torch."""

    def told(dtype=torch.bfloat16, head_dim=64, stored=torch.int8, is_cuda=True):
        size = torch.Size((1, 2, 1, head_dim))
        return takes(SimpleNamespace(is_cuda=is_cuda, dtype=dtype, shape=size, device=0), stored)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert told()
    assert not told(is_cuda=False)
    assert not told(dtype=torch.float64)
    assert not told(head_dim=320)
    assert not told(stored=torch.float8_e4m3fn)
    monkeypatch.setattr(api, "HAS_TRITON", False)
    assert not told()
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 4))
    monkeypatch.setattr(torch.version, "cuda", None)  # As in torch for AMD's GPUs.
    assert not told()


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"v": torch.ones(2, 3, 3, 32)}, "one type and of one"),
        ({"k": torch.ones(2, 3, 3, 64).double()}, "expected k in float32"),
        ({"slots": SLOTS[:, :2]}, r"slots of \(2, 3\) in int64, got \(2, 2\)"),
        ({"slots": SLOTS.int()}, "in int64, got .* in torch.int32"),
        ({"block_table": TABLE}, r"keys of \(n_pages, page_size, 3, 64\), got \(2, 3, 12, 64\)"),
        ({"keys": torch.ones(2, 3, 12, 60)}, r"keys of \(2, 3, positions, 64\), got \(2, 3, 12, 60\)"),
        ({"keys": torch.ones(2, 3, 12, 64).half()}, "keys in torch.float32, got torch.float16"),
        ({"k_scale": torch.ones(2, 3, 12)}, "only int8, float8_e4m3fn and uint8 have scales"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes, said):
    k, v = torch.ones(2, 3, 3, 64), torch.ones(2, 3, 3, 64)
    given = {"keys": torch.ones(2, 3, 12, 64), "values": torch.ones(2, 3, 12, 64)}
    with pytest.raises(ValueError, match=said):
        cache_write_(**({"k": k, "v": v, "slots": SLOTS, **given} | changes))


def test_scales_that_do_not_fit_are_refused():
    k, v = torch.ones(2, 3, 3, 64), torch.ones(2, 3, 3, 64)
    held = cache(torch.uint8, torch.float32, 64, in_pages=False)
    with pytest.raises(ValueError, match=r"scales of keys of \(2, 3, 12, 2, 2\) in torch.bfloat16"):
        cache_write_(k=k, v=v, slots=SLOTS, **held | {"k_scale": torch.ones(2, 3, 12)})
    with pytest.raises(ValueError, match="the groups of a position side by side"):
        held["v_scale"] = held["v_scale"].transpose(2, 3).contiguous().transpose(2, 3)
        cache_write_(k=k, v=v, slots=SLOTS, **held)
    odd = torch.ones(2, 3, 3, 7)
    with pytest.raises(ValueError, match="that 4 divides for a cache of half bytes, got 7"):
        cache_write_(k=odd, v=odd, slots=SLOTS, **held)
