"""What all operators refuse."""

import sys
from contextlib import contextmanager

import pytest
import torch
from torch.autograd import forward_ad

pytest.importorskip("triton")
from peakward.kernels.ops.cache_write.api import cache_write_
from peakward.kernels.ops.cross_entropy.api import cross_entropy
from peakward.kernels.ops.decode_attention.api import decode_attention, paged_decode_attention
from peakward.kernels.ops.flash_attention.api import flash_attention, flash_attention_varlen
from peakward.kernels.ops.layer_norm.api import add_layer_norm, layer_norm
from peakward.kernels.ops.linear_cross_entropy.api import linear_cross_entropy
from peakward.kernels.ops.quantized_matmul.api import int4_matmul, int8_matmul
from peakward.kernels.ops.rms_norm.api import add_rms_norm, rms_norm
from peakward.kernels.ops.rope.api import rope, rope_
from peakward.kernels.ops.softmax.api import softmax
from peakward.kernels.ops.swiglu.api import gated_product, swiglu

ROWS, WEIGHT, ANGLES = torch.ones(4, 16), torch.ones(16), torch.ones(3, 8)
HEADS, TOKENS = torch.ones(1, 2, 3, 16), torch.ones(3, 2, 16)
CACHE, PAGES = torch.ones(1, 2, 9, 16), torch.ones(2, 9, 2, 16)
STARTS, LENGTHS, TABLE = (torch.tensor(each, dtype=torch.int32) for each in ([0, 3], [9], [[1, 0]]))
INT8, INT4 = torch.ones(5, 128, dtype=torch.int8), torch.ones(1, 5, 16, dtype=torch.int32)
X, SCALE = torch.ones(2, 128), torch.ones(1, 5)


def packed(tokens, starts):
    return flash_attention_varlen(
        tokens,
        tokens,
        tokens,
        cu_seqlens_q=starts,
        cu_seqlens_k=starts,
        max_seqlen_q=3,
        max_seqlen_k=3,
        causal=True,
    )


def written(k, slots):
    keys, values = CACHE.clone(), CACHE.clone()
    cache_write_(keys, values, k, k, slots)
    return keys


CALLS = {
    "rms_norm": (lambda x, weight: rms_norm(x, (16,), weight), ROWS, WEIGHT),
    "add_rms_norm": (add_rms_norm, ROWS, ROWS),
    "layer_norm": (lambda x, bias: layer_norm(x, (16,), None, bias), ROWS, WEIGHT),
    "add_layer_norm": (add_layer_norm, ROWS, ROWS),
    "gated_product": (gated_product, ROWS, ROWS),
    "rope": (lambda x, angles: rope(x, angles, angles), HEADS, ANGLES),
    "rope_": (lambda x, angles: rope_(x.clone(), angles, angles), HEADS, ANGLES),
    "flash_attention": (lambda q, k: flash_attention(q, k, k, causal=True), HEADS, HEADS),
    "flash_attention_varlen": (packed, TOKENS, STARTS),
    "decode_attention": (
        lambda q, length: decode_attention(q, CACHE, CACHE, length),
        HEADS,
        LENGTHS,
    ),
    "paged_decode_attention": (
        lambda q, table: paged_decode_attention(q, PAGES, PAGES, table, LENGTHS),
        HEADS,
        TABLE,
    ),
    "cache_write_": (written, HEADS, torch.arange(3)[None]),
    "int8_matmul": (lambda x, scale: int8_matmul(x, INT8, scale), X, SCALE),
    "int4_matmul": (lambda x, scale: int4_matmul(x, INT4, scale), X, SCALE),
}
EACH = pytest.mark.parametrize("name", CALLS)


@EACH
def test_a_tensor_on_the_meta_device_makes_no_result_up(name):
    call, first, second = CALLS[name]
    with pytest.raises(ValueError, match="expected tensors on one device, got cpu, meta"):
        call(first, second.to("meta"))


TARGETS = torch.zeros(4, dtype=torch.int64)
ONE_INPUT = {
    **{
        name: (lambda x, call=call, other=other: call(x, other), x)
        for name, (call, x, other) in CALLS.items()
    },
    "softmax": (softmax, ROWS),
    "swiglu": (swiglu, ROWS),
    "cross_entropy": (lambda x: cross_entropy(x, TARGETS), ROWS),
    "chunked": (lambda x: linear_cross_entropy(x, ROWS, TARGETS, implementation="chunked"), ROWS),
    "recomputed": (
        lambda x: linear_cross_entropy(x, ROWS, TARGETS, implementation="recomputed"),
        ROWS,
    ),
}
WITHOUT_GRADIENT = (
    "decode_attention",
    "paged_decode_attention",
    "cache_write_",
    "int8_matmul",
    "int4_matmul",
)


OF_TRITON = tuple(each for each in ONE_INPUT if each != "int8_matmul")
"""On a CPU torch's own operators multiply by weights of int8."""


@pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is interpreted here")
@pytest.mark.parametrize("name", ONE_INPUT)
def test_a_forward_derivative_is_refused(name):
    call, x = ONE_INPUT[name]
    tangent = torch.ones_like(x)
    with pytest.raises(NotImplementedError, match="expected no forward-mode differentiation"):
        torch.func.jvp(call, (x,), (tangent,))
    with (
        forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match="expected no forward-mode differentiation"),
    ):
        call(forward_ad.make_dual(x, tangent))
    call(x)


@pytest.mark.parametrize("name", OF_TRITON)
def test_without_triton_a_cpu_is_named_as_what_it_is(name, monkeypatch):
    call, x = ONE_INPUT[name]
    for module in [each for each in sys.modules if "triton" in each]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match="expected tensors on a CUDA device, got cpu"):
        call(x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is interpreted here")
@pytest.mark.parametrize("name", OF_TRITON)
def test_kernels_start_on_the_device_of_their_tensors(name, monkeypatch):
    """Triton starts them on the process's current one, whichever tensors they are handed."""
    from triton.runtime import interpreter

    call, x = ONE_INPUT[name]
    chosen, started = [], []

    @contextmanager
    def device_of(tensor):
        chosen.append(tensor)
        yield
        chosen.pop()

    start = interpreter.GridExecutor.__call__

    def noted(executor, *arguments, **options):
        started.append(len(chosen))
        return start(executor, *arguments, **options)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", noted)
    leaf = x.clone().requires_grad_(x.is_floating_point())
    result = call(leaf)
    if name not in WITHOUT_GRADIENT:
        (result if isinstance(result, torch.Tensor) else result[0]).sum().backward()
    assert started
    assert all(started)
