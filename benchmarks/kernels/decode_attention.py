"""Attention of one token a sequence to a long cache, against what torch computes it with."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

from kernels.contest import OURS, Arm, Contest
from peakward.kernels.ops.decode_attention import api, reference, triton
from peakward.kernels.ops.decode_attention.triton import Settings

SHAPES = (
    (16, 32, 32, 4096, 80),
    (16, 8, 32, 8192, 128),
    (64, 8, 32, 4096, 128),
    (1, 8, 32, 131072, 128),
    (8, 8, 64, 16384, 128),
    (32, 12, 12, 4096, 64),
    (16, 32, 32, 4097, 80),
    (16, 8, 32, 10007, 128),
    (16, 8, 32, 8192, 96),
    (16, 4, 16, 8192, 256),
)
"""(batch, kv_heads, heads, positions, head_dim)."""
PAGED = ((16, 8, 32, 8192, 128), (64, 8, 32, 4096, 128))
STORED = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn, "int4": torch.uint8}
PAGE_SIZE = 16
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}

Shape = tuple[int, int, int, int, int]


def contests() -> Iterable[Contest]:
    for shape in SHAPES:
        yield _plain(shape)
    for shape in PAGED:
        yield _paged(shape)
    for stored in STORED:
        for shape in SHAPES[:5]:
            yield _quantized(shape, stored)


def sweep() -> Iterable[Contest]:
    """Our kernel at other settings; the one named peakward has its own choice."""
    for shape in (SHAPES[0], SHAPES[1], SHAPES[2], SHAPES[3], SHAPES[5]):
        yield _swept(shape, None)
    for shape in (SHAPES[0], SHAPES[2]):
        yield _swept(shape, "int8")
    for stored in ("e4m3", "int4"):
        yield _swept(SHAPES[2], stored)


def _inputs(shape: Shape) -> list[Tensor]:
    batch, kv_heads, heads, positions, head_dim = shape
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = ((heads, 1), (kv_heads, positions), (kv_heads, positions))
    return [
        torch.randn(
            (batch, *size, head_dim), generator=generator, device="cuda", dtype=torch.bfloat16
        )
        for size in sizes
    ]


def _described(shape: Shape, cache: str) -> Mapping[str, int | str | bool]:
    names = ("batch", "kv heads", "heads", "positions", "head dim")
    return {**dict(zip(names, shape, strict=True)), "cache": cache}


def _shared(make: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    """Made when first asked for, once: what fills memory."""
    made: list[Tensor] = []

    def get() -> list[Tensor]:
        if not made:
            made.extend(make())
        return made

    return get


def _exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """In fp64, a sequence at a time."""
    parts = zip(q.split(1), k.split(1), v.split(1), strict=True)
    return torch.cat([reference.decode_attention(*(t.double() for t in part))[0] for part in parts])


def _plain(shape: Shape) -> Contest:
    get = _shared(partial(_inputs, shape))
    gqa = shape[1] != shape[2]

    def sdpa(backend: SDPBackend | None) -> Arm:
        q, k, v = get()

        def call() -> Tensor:
            if backend is None:
                return F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa)
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa)

        return call

    def flex() -> Arm:
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda: compiled(*get(), enable_gqa=gqa)

    return Contest(
        operator="decode_attention",
        shape=_described(shape, "bf16"),
        arms={
            OURS: lambda: partial(api.decode_attention, *get()),
            "sdpa": lambda: sdpa(None),
            **{f"sdpa {name}": partial(sdpa, each) for name, each in BACKENDS.items()},
            "flex": flex,
            "compiled": lambda: partial(_compiled(_naive), *get()),
        },
        n_bytes=_cache_bytes(shape, torch.bfloat16),
        reads=True,
        exact=lambda: _exact(*get()),
    )


def _cache_bytes(shape: Shape, stored: torch.dtype) -> int:
    """The cache, q and the output; of a quantised one its scales too, in fp32 or of half bytes in bf16."""
    batch, kv_heads, heads, positions, head_dim = shape
    rows = 2 * batch * kv_heads * positions
    outside = 2 * batch * heads * head_dim * 2
    if stored == torch.uint8:
        return rows * (head_dim // 2 + head_dim // reference.group_size(head_dim) * 4) + outside
    scales = 0 if stored == torch.bfloat16 else rows * 4
    return rows * head_dim * stored.itemsize + scales + outside


def _naive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return reference.decode_attention(q, k, v)[0]


def _naive_quantized(q: Tensor, k: Tensor, v: Tensor, k_scale: Tensor, v_scale: Tensor) -> Tensor:
    return _naive(q, _widened(k, k_scale, q.dtype), _widened(v, v_scale, q.dtype))


def _widened(stored: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    widen = reference.unpacked if stored.dtype == torch.uint8 else reference.dequantized
    return widen(stored, scale, dtype)


def _naive_paged(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    k, v = reference.gathered(k, table), reference.gathered(v, table)
    return reference.decode_attention(q, k, v, lengths=lengths)[0]


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, fullgraph=True, dynamic=False)


def _paged(shape: Shape) -> Contest:
    def make() -> list[Tensor]:
        q, k, v = _inputs(shape)
        batch, kv_heads, _, positions, head_dim = shape
        n_pages = batch * positions // PAGE_SIZE
        pages = [each.view(n_pages, PAGE_SIZE, kv_heads, head_dim) for each in (k, v)]
        generator = torch.Generator("cuda").manual_seed(1)
        table = torch.randperm(n_pages, generator=generator, device="cuda", dtype=torch.int32)
        lengths = torch.full((batch,), positions, dtype=torch.int32, device="cuda")
        return [q, *pages, table.view(batch, -1), lengths]

    get = _shared(make)

    def exact() -> Tensor:
        q, k, v, table, _ = get()
        return torch.cat(
            [
                _exact(q[i : i + 1], *(reference.gathered(p, table[i : i + 1]) for p in (k, v)))
                for i in range(len(q))
            ]
        )

    return Contest(
        operator="decode_attention",
        shape=_described(shape, f"bf16 pages of {PAGE_SIZE}"),
        arms={
            OURS: lambda: partial(api.paged_decode_attention, *get()),
            "eager": lambda: partial(_naive_paged, *get()),
            "compiled": lambda: partial(_compiled(_naive_paged), *get()),
        },
        n_bytes=_cache_bytes(shape, torch.bfloat16) + shape[0] * shape[3] // PAGE_SIZE * 4,
        reads=True,
        exact=exact,
    )


def _quantized_inputs(shape: Shape, stored: torch.dtype) -> list[Tensor]:
    q, k, v = _inputs(shape)
    if stored == torch.uint8:
        (k, k_kept), (v, v_kept) = reference.packed(k), reference.packed(v)
        return [q, k, v, k_kept, v_kept]
    k, k_scale = reference.quantized(k, stored)
    v, v_scale = reference.quantized(v, stored)
    return [q, k, v, k_scale, v_scale]


def _quantized(shape: Shape, stored: str) -> Contest:
    get = _shared(partial(_quantized_inputs, shape, STORED[stored]))
    gqa = shape[1] != shape[2]

    def ours() -> Arm:
        q, k, v, k_scale, v_scale = get()
        return partial(api.decode_attention, q, k, v, k_scale=k_scale, v_scale=v_scale)

    def dequantising_sdpa() -> Arm:
        q, k, v, k_scale, v_scale = get()
        dequantized = _compiled(partial(_widened, dtype=q.dtype))

        def call() -> Tensor:
            wide = dequantized(k, k_scale), dequantized(v, v_scale)
            return F.scaled_dot_product_attention(q, *wide, enable_gqa=gqa)

        return call

    return Contest(
        operator="decode_attention",
        shape=_described(shape, stored),
        arms={
            OURS: ours,
            "dequantised, sdpa": dequantising_sdpa,
            "compiled": lambda: partial(_compiled(_naive_quantized), *get()),
        },
        n_bytes=_cache_bytes(shape, STORED[stored]),
        reads=True,
        exact=lambda: _exact_quantized(*get()),
    )


def _exact_quantized(q: Tensor, k: Tensor, v: Tensor, k_scale: Tensor, v_scale: Tensor) -> Tensor:
    parts = zip(*(each.split(1) for each in (q, k, v, k_scale, v_scale)), strict=True)
    return torch.cat([_naive_quantized(part[0].double(), *part[1:]) for part in parts])


def _swept(shape: Shape, stored: str | None) -> Contest:
    dtype = STORED[stored] if stored else torch.bfloat16
    get = _shared(partial(_quantized_inputs, shape, dtype) if stored else partial(_inputs, shape))
    batch, kv_heads, heads, positions, head_dim = shape
    chosen = triton.settings_for(
        n_groups=batch * kv_heads,
        n_rows=heads // kv_heads,
        span=positions,
        row_bytes=head_dim // 2 if stored == "int4" else head_dim * dtype.itemsize,
        n_multiprocessors=triton.H100_MULTIPROCESSORS,
    )

    def at(settings: Settings) -> Arm:
        q, k, v, *scales = get()
        k_scale, v_scale = scales or (None, None)
        return partial(
            triton.decode_attention, q, k, v, k_scale=k_scale, v_scale=v_scale, settings=settings
        )

    tried = [
        Settings(n_splits, block, warps, stages)
        for block, warps, stages in (
            (32, 2, 4), (32, 4, 5), (64, 2, 3), (64, 4, 2), (64, 4, 3), (64, 4, 4),
            (128, 4, 2), (128, 8, 2), (128, 8, 3), (128, 4, 3), (256, 8, 2),
        )
        for n_splits in sorted({max(1, chosen.n_splits * up // 2) for up in (1, 2, 4, 8)})
    ]  # fmt: skip
    arms = {" ".join(map(str, each)): partial(at, each) for each in tried if each != chosen}
    return Contest(
        operator="decode_attention",
        shape={**_described(shape, stored or "bf16"), "chosen": " ".join(map(str, chosen))},
        arms={OURS: lambda: at(chosen), **arms},
        n_bytes=_cache_bytes(shape, dtype),
        reads=True,
    )
