"""Checkpointing: the same numbers bit for bit, fewer bytes held, and what exactly is recomputed."""

import math
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.kernels.ops.attention.api import implementation
from peakward.lab.levers import checkpointing
from peakward.lab.models import decoder
from tiers import in_full

BATCH, SEQ_LEN = 2, 16
MODES = ("sqrt", "every-block", "selective")
aten = torch.ops.aten


def build(shape, mode, *, attention="naive", dtype=torch.float32):
    model = decoder.build(
        shape, attention=implementation(attention), device="cpu", dtype=dtype, seed=0
    )
    checkpointing.apply(model, mode)
    return model


def tokens():
    return torch.randint(61, (BATCH, SEQ_LEN), generator=torch.Generator().manual_seed(1))


class Calls(TorchDispatchMode):
    """How often each operator ran."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func] += 1
        return func(*args, **(kwargs or {}))


def calls_in_backward(shape, mode, **options):
    model = build(shape, mode, **options)
    loss = model(tokens(), tokens())
    with Calls() as calls:
        loss.backward()
    return calls.count


def recomputed(shape, mode, **options):
    """Calls in backward beyond those that backward makes without checkpointing."""
    return calls_in_backward(shape, mode, **options) - calls_in_backward(shape, "none", **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("setting", ["fp32", *in_full(["bf16", "bf16-mixed"])])
def test_equals_none_bit_for_bit(mode, attention, setting, make_shape):
    dtype = torch.bfloat16 if setting == "bf16" else torch.float32

    def outcome(mode):
        model = build(make_shape(n_layers=5), mode, attention=attention, dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=setting == "bf16-mixed"):
            loss = model(tokens(), tokens())
        loss.backward()
        return [loss.detach(), *(each.grad for each in model.parameters())]

    torch.use_deterministic_algorithms(True)
    try:
        for found, expected in zip(outcome(mode), outcome("none"), strict=True):
            assert torch.equal(found, expected)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("n_layers", [1, 2, 3, 4, 5, 9, 12, 32, 48])
def test_sqrt_cuts_the_blocks_into_runs_of_about_its_root(n_layers, make_shape):
    with torch.device("meta"):
        model = decoder.Decoder(make_shape(n_layers=n_layers), implementation("naive"))
    blocks = list(model.blocks)
    checkpointing.apply(model, "sqrt")
    runs = [list(run.blocks) for run in model.blocks]
    assert [block for run in runs for block in run] == blocks
    length = math.ceil(math.sqrt(n_layers))
    assert [len(run) for run in runs[:-1]] == [length] * (len(runs) - 1)
    assert 1 <= len(runs[-1]) <= length


@pytest.mark.parametrize("mode", ["none", *MODES])
def test_the_parameters_stay_and_keep_their_order(mode, make_shape):
    model = build(make_shape(n_layers=5), "none")
    before = list(model.parameters())
    checkpointing.apply(model, mode)
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))


DEAR = checkpointing.SAVED_BY_SELECTIVE


@pytest.mark.parametrize("attention", ["naive", "sdpa", "sdpa-math"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_selective_recomputes_no_matmul_and_no_attention(attention, bias, make_shape):
    extra = recomputed(
        make_shape(n_layers=3, bias=bias, qkv_bias=bias), "selective", attention=attention
    )
    assert not {op: n for op, n in extra.items() if op in DEAR}
    assert extra[aten.silu.default] == 3  # It does recompute what is cheap.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_selective_recomputes_no_matmul_of_an_expert(dtype, make_shape):
    """Neither where a loop makes one for each, nor where all are one operator."""
    shape = make_shape(n_layers=3, n_experts=4, n_active_experts=2)
    extra = recomputed(shape, "selective", dtype=dtype)
    assert not {op: n for op, n in extra.items() if op in DEAR}
    assert extra[aten.topk.default] == 3  # The routing is found again.


@pytest.mark.parametrize("mode", ["sqrt", "every-block"])
def test_the_other_modes_recompute_every_matmul_that_backward_needs(mode, make_shape):
    """Of a block's four projections and two attention products all but each run's last one."""
    extra = recomputed(make_shape(n_layers=5), mode)
    runs = {"sqrt": 2, "every-block": 5}[mode]
    assert extra[aten.mm.default] == 4 * 5 - runs
    assert extra[aten.bmm.default] == 2 * 5
    extra = recomputed(make_shape(n_layers=5), mode, attention="sdpa")
    assert extra[aten._scaled_dot_product_flash_attention_for_cpu.default] == 5


def held_between_forward_and_backward(shape, mode, live, attention="sdpa"):
    model = build(shape, mode, attention=attention)
    ids = tokens()
    with live:
        loss = model(ids, ids)
        held = live.now
        del loss
    assert live.now == 0
    return held


def test_every_block_holds_one_residual_stream_a_layer(make_shape, live_bytes):
    def held(n_layers):
        return held_between_forward_and_backward(
            make_shape(n_layers=n_layers), "every-block", live_bytes
        )

    assert held(6) - held(5) == BATCH * SEQ_LEN * 32 * 4


def test_the_modes_hold_less_in_their_order(make_shape, live_bytes):
    shape = make_shape(n_layers=9)
    held = [
        held_between_forward_and_backward(shape, mode, live_bytes)
        for mode in ("none", "selective", "every-block", "sqrt")
    ]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == 4


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_wrapped_without_gradients(mode, make_shape, monkeypatch):
    model = build(make_shape(), mode)
    expected = build(make_shape(), "none")(tokens())
    monkeypatch.setattr(checkpointing, "checkpoint", None)
    with torch.no_grad():
        assert torch.equal(model(tokens()), expected)


def test_the_random_state_is_not_stashed(make_shape, monkeypatch):
    """Reading it would synchronise with the device, which a CUDA graph may not do."""

    def forbidden(*_args, **_kwargs):
        raise AssertionError

    monkeypatch.setattr(torch, "get_rng_state", forbidden)
    monkeypatch.setattr("torch.utils.checkpoint.get_device_states", forbidden)
    for mode in MODES:
        build(make_shape(), mode)(tokens(), tokens()).backward()
