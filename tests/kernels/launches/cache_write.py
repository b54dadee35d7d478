"""What the kernel that writes to caches is started with."""

import torch
from triton.runtime import driver

from launch import Launch
from peakward.kernels.ops.cache_write.triton import cache_write_
from peakward.kernels.ops.decode_attention.reference import layout


def _write(*, head_dim: int = 128, stored: torch.dtype | None = None, page_size: int = 0) -> None:
    batch, kv_heads, positions = 16, 8, 8192
    with torch.device("meta"):
        size = (batch, kv_heads, positions)
        if page_size:
            size = (batch * positions // page_size, page_size, kv_heads)
        width, of_scale, scale_dtype = layout(head_dim, stored or torch.int8)
        keys, values = (
            torch.empty((*size, width), dtype=stored or torch.bfloat16) for _ in range(2)
        )
        scales = [torch.empty((*size, *of_scale), dtype=scale_dtype) for _ in range(2)]
        k, v = (torch.empty(batch, kv_heads, 1, head_dim, dtype=torch.bfloat16) for _ in range(2))
        table = torch.empty(batch, positions // max(1, page_size), dtype=torch.int32)
        cache_write_(
            keys,
            values,
            k,
            v,
            torch.empty(batch, 1, dtype=torch.int64),
            block_table=table if page_size else None,
            k_scale=scales[0] if stored else None,
            v_scale=scales[1] if stored else None,
        )


LAUNCHES = {
    "bf16": Launch(_write, registers=64, shared_bytes=1 << 10),
    "bf16 pages": Launch(lambda: _write(page_size=16), registers=64, shared_bytes=1 << 10),
    "int8 80": Launch(
        lambda: _write(head_dim=80, stored=torch.int8), registers=64, shared_bytes=1 << 10
    ),
    "int4": Launch(lambda: _write(stored=torch.uint8), registers=64, shared_bytes=1 << 10),
    "int4 80 pages": Launch(
        lambda: _write(head_dim=80, stored=torch.uint8, page_size=16),
        registers=64,
        shared_bytes=1 << 10,
    ),
}
if driver.active.get_current_target().arch >= 89:
    LAUNCHES["e4m3"] = Launch(
        lambda: _write(stored=torch.float8_e4m3fn), registers=64, shared_bytes=1 << 10
    )
