"""Attention against torch's: cuDNN, FlashAttention-2, the efficient kernel and FlexAttention.

All tensors are contiguous (batch, heads, seq_len, head_dim) in bf16, 2048 wide over all heads (2560
for heads of 80), 16,384 tokens in all.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.contest import OURS, Arm, Contest
from peakward.kernels.ops.flash_attention.api import flash_attention

OPERATOR = "flash_attention"
TOKENS = 16_384
PASSES = ("forward", "backward", "both")
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Shape(NamedTuple):
    """One of self-attention."""

    head_dim: int
    seq_len: int
    n_heads: int
    n_kv_heads: int
    n_batches: int
    causal: bool = True
    window: int | None = None
    dtype: torch.dtype = torch.bfloat16


def shape_of(
    head_dim: int, seq_len: int, *, causal: bool = True, window: int | None = None
) -> Shape:
    """The whole width in heads of that many, all tokens in sequences of that length."""
    heads = 32 if head_dim == 80 else 2048 // head_dim
    return Shape(head_dim, seq_len, heads, heads, max(1, TOKENS // seq_len), causal, window)


def contests() -> Iterator[Contest]:
    """What decides first; the others as long as there is time."""
    yield compiled_training()
    for seq_len in (4096, 16_384, 1024, 2048, 512):
        for head_dim in (64, 80, 128, 96):
            yield from passes(shape_of(head_dim, seq_len), flex=seq_len == 4096)
    for head_dim in (64, 80, 128, 96):
        yield from passes(shape_of(head_dim, 4096, causal=False))
    yield from passes(Shape(128, 4096, 32, 8, 4), flex=True)
    yield from passes(shape_of(128, 4096, window=1024), flex=True)
    for seq_len in (1000, 5000):
        for head_dim in (64, 80, 128):
            yield from passes(shape_of(head_dim, seq_len))


def sweep() -> Iterator[Contest]:
    """Our kernels at other settings: those for Hopper first, where there is one."""
    from kernels import flash_attention_hopper_sweep, flash_attention_sweep

    if torch.cuda.get_device_capability()[0] == 9:
        yield from flash_attention_hopper_sweep.contests()
    yield from flash_attention_sweep.contests()


def passes(shape: Shape, *, flex: bool = False) -> Iterator[Contest]:
    """Forward, backward alone, and both: against FlexAttention too, which compiles for 20 s a shape."""
    for name in PASSES:
        yield contest(shape, name, arms(shape, flex=flex))


def arms(shape: Shape, *, flex: bool) -> dict[str, Callable[[], Attention]]:
    """Ours, and everyone who computes the shape."""
    portable = partial(_ours, shape, "triton")
    found: dict[str, Callable[[], Attention]] = {OURS: portable}
    if on_hopper(shape):
        found = {OURS: partial(_ours, shape, "hopper"), "peakward triton": portable}
    if shape.window is None:
        found["cudnn"] = partial(sdpa, shape, SDPBackend.CUDNN_ATTENTION)
        found["flash"] = partial(sdpa, shape, SDPBackend.FLASH_ATTENTION)
        if shape.head_dim == 80:
            found["efficient"] = partial(sdpa, shape, SDPBackend.EFFICIENT_ATTENTION)
    if flex or shape.window is not None:
        found["flex"] = partial(_flex, shape)
    return found


def on_hopper(shape: Shape) -> bool:
    """Whether the kernels made for Hopper can be asked for it, here."""
    return (
        shape.head_dim in (64, 80, 96, 128)
        and shape.window is None
        and shape.dtype in (torch.float16, torch.bfloat16)
        and torch.cuda.get_device_capability()[0] == 9
    )


def compiled_training() -> Contest:
    """One long sequence of 16 heads, forward and backward through torch.compile."""
    shape = Shape(head_dim=64, seq_len=16_384, n_heads=16, n_kv_heads=16, n_batches=1)
    built = arms(shape, flex=True)
    compiled = {
        name: build if name == "flex" else partial(_compiled, build)
        for name, build in built.items()
    }
    return contest(shape, "both compiled", compiled)


def contest(
    shape: Shape, name: str, attentions: Mapping[str, Callable[[], Attention]], **options: Any
) -> Contest:
    """That pass of all of them, on equal inputs."""
    return Contest(
        operator=OPERATOR,
        shape={
            "pass": name,
            "d": shape.head_dim,
            "seq": shape.seq_len,
            "heads": f"{shape.n_heads}/{shape.n_kv_heads}",
            "batch": shape.n_batches,
            "mask": ("causal" if shape.causal else "none")
            if shape.window is None
            else f"window {shape.window}",
            "dtype": str(shape.dtype).removeprefix("torch."),
        },
        arms={arm: partial(_arm, shape, name, build) for arm, build in attentions.items()},
        flops=flops(shape, name),
        **options,
    )


def flops(shape: Shape, name: str) -> float:
    """Of two products forward and five backward, over the pairs of queries and keys that are seen."""
    pairs = shape.seq_len**2
    if shape.window is not None and shape.window < shape.seq_len:
        pairs = shape.window * shape.seq_len - shape.window**2 // 2
    elif shape.causal:
        pairs //= 2
    forward = 4.0 * shape.n_batches * shape.n_heads * pairs * shape.head_dim
    return forward * {"forward": 1.0, "backward": 2.5}.get(name, 3.5)


def inputs(shape: Shape) -> list[Tensor]:
    """q, k, v and the gradient of the result: the same in every arm."""
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads, shape.n_heads)
    return [
        torch.randn(
            (shape.n_batches, heads, shape.seq_len, shape.head_dim),
            generator=generator,
            device="cuda",
            dtype=shape.dtype,
        )
        for heads in sizes
    ]


def _arm(shape: Shape, name: str, build: Callable[[], Attention]) -> Arm:
    attention = build()
    q, k, v, dout = inputs(shape)
    if name == "forward":
        return lambda: attention(q, k, v)
    for each in (q, k, v):
        each.requires_grad_()
    if name == "backward":
        out = attention(q, k, v)
        return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
    return lambda: torch.autograd.grad(attention(q, k, v), (q, k, v), dout)


def _ours(shape: Shape, implementation: str) -> Attention:
    return partial(
        flash_attention, causal=shape.causal, window=shape.window, implementation=implementation
    )


def sdpa(shape: Shape, backend: SDPBackend) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=shape.causal, enable_gqa=shape.n_heads != shape.n_kv_heads
            )

    return attention


def _flex(shape: Shape) -> Attention:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if shape.window is None:
            return query >= key
        return (query >= key) & (query - key < shape.window)

    mask = (
        create_block_mask(seen, None, None, shape.seq_len, shape.seq_len) if shape.causal else None
    )
    return partial(
        _compile(flex_attention),
        block_mask=mask,
        enable_gqa=shape.n_heads != shape.n_kv_heads,
    )


def _compiled(build: Callable[[], Attention]) -> Attention:
    attention = build()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v)

    return _compile(call, fullgraph=True)


def _compile(function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=False, **options)
