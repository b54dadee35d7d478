"""What the kernels of decode attention are started with."""

import torch
from triton.runtime import driver

from launch import Launch
from peakward.kernels.ops.decode_attention.reference import group_size
from peakward.kernels.ops.decode_attention.triton import decode_attention


def _decode(
    *,
    heads: int = 32,
    kv_heads: int = 8,
    n_queries: int = 1,
    head_dim: int = 128,
    positions: int = 8192,
    dtype: torch.dtype = torch.bfloat16,
    stored: torch.dtype | None = None,
    page_size: int = 0,
    window: int | None = None,
) -> None:
    batch = 16
    with torch.device("meta"):
        size = (batch, kv_heads, positions, head_dim)
        if page_size:
            size = (batch * positions // page_size, page_size, kv_heads, head_dim)
        scales = torch.empty(size[:3])
        if stored == torch.uint8:
            size = (*size[:3], head_dim // 2)
            n_groups = head_dim // group_size(head_dim)
            scales = torch.empty(*size[:3], n_groups, 2, dtype=torch.bfloat16)
        k, v = (torch.empty(size, dtype=stored or dtype) for _ in range(2))
        k_scale, v_scale = (scales if stored else None for _ in range(2))
        table = torch.empty(batch, positions // page_size, dtype=torch.int32) if page_size else None
        decode_attention(
            torch.empty(batch, heads, n_queries, head_dim, dtype=dtype),
            k,
            v,
            lengths=torch.empty(batch, dtype=torch.int32),
            block_table=table,
            k_scale=k_scale,
            v_scale=v_scale,
            window=window,
        )


LAUNCHES = {
    "bf16 128": Launch(_decode, registers=144, shared_bytes=170 << 10),
    "fp16 64": Launch(
        lambda: _decode(heads=12, kv_heads=12, head_dim=64, dtype=torch.float16),
        registers=128,
        shared_bytes=108 << 10,
    ),
    "bf16 80": Launch(
        lambda: _decode(kv_heads=32, head_dim=80), registers=144, shared_bytes=170 << 10
    ),
    "bf16 96 window": Launch(
        lambda: _decode(head_dim=96, window=4096), registers=144, shared_bytes=170 << 10
    ),
    "bf16 256": Launch(lambda: _decode(head_dim=256), registers=152, shared_bytes=170 << 10),
    "bf16 8 queries": Launch(
        lambda: _decode(heads=64, n_queries=8), registers=255, shared_bytes=160 << 10
    ),
    "bf16 pages": Launch(lambda: _decode(page_size=16), registers=176, shared_bytes=118 << 10),
    "int8": Launch(lambda: _decode(stored=torch.int8), registers=128, shared_bytes=48 << 10),
    "int8 80": Launch(
        lambda: _decode(stored=torch.int8, kv_heads=32, head_dim=80),
        registers=128,
        shared_bytes=48 << 10,
    ),
    "int8 of fp16 16": Launch(
        lambda: _decode(stored=torch.int8, head_dim=16, dtype=torch.float16),
        registers=168,
        shared_bytes=25 << 10,
    ),
    "int8 8 queries": Launch(
        lambda: _decode(heads=64, n_queries=8, stored=torch.int8),
        registers=255,
        shared_bytes=150 << 10,
        stack_bytes=400,
    ),
    "int4": Launch(lambda: _decode(stored=torch.uint8), registers=168, shared_bytes=48 << 10),
    "int4 80": Launch(
        lambda: _decode(stored=torch.uint8, kv_heads=32, head_dim=80),
        registers=168,
        shared_bytes=48 << 10,
    ),
    "int4 of fp32 256": Launch(
        lambda: _decode(stored=torch.uint8, head_dim=256, dtype=torch.float32),
        registers=255,
        shared_bytes=160 << 10,
    ),
    "int4 pages": Launch(
        lambda: _decode(stored=torch.uint8, page_size=16), registers=168, shared_bytes=48 << 10
    ),
}
if driver.active.get_current_target().arch >= 89:
    LAUNCHES["e4m3"] = Launch(
        lambda: _decode(stored=torch.float8_e4m3fn), registers=208, shared_bytes=76 << 10
    )
