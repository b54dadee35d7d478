"""FLOPs are those that torch's counter has; what that leaves out is counted from the maths."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from peakward.lab.inference.storage import empty
from peakward.lab.models.operator_work import bytes_read, bytes_written, flops


def meta(*shape):
    return torch.empty(shape, device="meta")


PRODUCTS = {
    "aten.mm": (meta(3, 5), meta(5, 7)),
    "aten.addmm": (meta(7), meta(3, 5), meta(5, 7)),
    "aten.bmm": (meta(2, 3, 5), meta(2, 5, 7)),
    "aten.baddbmm": (meta(2, 3, 7), meta(2, 3, 5), meta(2, 5, 7)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_those_of_torchs_counter(name):
    operator = getattr(torch.ops.aten, name.removeprefix("aten."))
    with FlopCounterMode(display=False) as counter:
        operator(*PRODUCTS[name])
    assert flops(name, list(PRODUCTS[name])) == counter.get_total_flops() > 0


@pytest.mark.parametrize(
    ("stored", "of_a_head"),
    [(None, 128), (torch.int8, 64 + 4), (torch.float8_e4m3fn, 64 + 4), (torch.uint8, 32 + 8)],
)
def test_a_cache_is_written_where_the_new_keys_go_alone(stored, of_a_head):
    """Of 14 positions of 2 heads of 64, in 2 sequences."""
    held = empty((2, 2, 14), 64, dtype=torch.bfloat16, stored=stored, device="meta")
    new = meta(2, 2, 1, 64).bfloat16()
    given = [*held.parts, new, torch.empty_like(new), meta(2, 1).long()]
    assert bytes_read("peakward.cache_write", given) == 2 * 4 * 128 + 2 * 8
    assert bytes_written("peakward.cache_write", given, held.parts) == 2 * 4 * of_a_head


@pytest.mark.parametrize("kind", ["flash_attention", "efficient_attention", "cudnn_attention"])
def test_fused_attention_is_that_of_torchs_counter(kind):
    q, k, v = meta(2, 4, 16, 8), meta(2, 4, 12, 8), meta(2, 4, 12, 6)
    out = meta(2, 4, 16, 6)
    name = f"_scaled_dot_product_{kind}"
    counted = {
        operator: flop_registry[getattr(torch.ops.aten, operator)](*given, out_val=out)
        for operator, given in {name: (q, k, v), f"{name}_backward": (out, q, k, v)}.items()
    }
    assert flops(f"aten.{name}", [q, k, v]) == counted[name] > 0
    assert flops(f"aten.{name}_backward", [out, q, k, v]) == counted[f"{name}_backward"] > 0


def test_attention_on_a_cpu_which_torchs_counter_leaves_out_is_counted():
    q, kv = torch.ones(2, 4, 16, 8), torch.ones(2, 1, 16, 8)
    with FlopCounterMode(display=False) as counter:
        F.scaled_dot_product_attention(q, kv, kv, is_causal=True, enable_gqa=True)
    assert counter.get_total_flops() == 0
    forward = flops("aten._scaled_dot_product_flash_attention_for_cpu", [q, kv, kv])
    assert forward == 2 * (2 * 2 * 4 * 16 * 16 * 8)


@pytest.mark.parametrize(
    ("keys", "others"),
    [
        ((2, 1, 48, 8), ()),
        ((2, 1, 48, 8), ((2,), (2, 1, 48), (2, 1, 48))),
        ((2, 1, 48, 4), ((2, 1, 48, 1, 2), (2, 1, 48, 1, 2))),
        ((30, 16, 1, 8), ((2,), (2, 3))),
        ((30, 16, 1, 4), ((2,), (2, 3), (30, 16, 1, 1, 2), (30, 16, 1, 1, 2))),
    ],
    ids=["contiguous", "in bytes", "in half bytes", "pages", "pages of half bytes"],
)
def test_attention_to_a_cache_is_of_its_positions_however_they_are_stored(keys, others):
    given = [(2, 4, 3, 8), keys, keys, *others]
    assert flops("peakward.decode_attention", [meta(*each) for each in given]) == (
        2 * (2 * 2 * 4 * 3 * 48 * 8)
    )


@pytest.mark.parametrize(
    ("shapes", "products"),
    [
        ([(30, 4), (6, 4, 5)], [(5, 4, 5)] * 6),
        ([(4, 30), (30, 5)], [(4, 5, 5)] * 6),
        ([(6, 3, 4), (4, 30)], [(3, 4, 5)] * 6),
        ([(6, 3, 4), (6, 4, 5)], [(3, 4, 5)] * 6),
    ],
)
def test_grouped_products_are_those_of_each_group(shapes, products):
    """Of six groups, by m, k and n of each."""
    with FlopCounterMode(display=False) as counter:
        for m, k, n in products:
            torch.mm(meta(m, k), meta(k, n))
    ends = torch.empty(6, device="meta", dtype=torch.int32)
    given = [*(meta(*each) for each in shapes), ends]
    assert flops("aten._grouped_mm", given) == counter.get_total_flops() > 0


def test_what_is_no_product_counts_nothing():
    assert flops("aten.add", [meta(3, 5), meta(3, 5)]) == 0
