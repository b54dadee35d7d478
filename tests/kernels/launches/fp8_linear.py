"""What the casts of fp8 products are started with. No GPU before sm_89 has e4m3."""

import torch

from launch import Launch
from peakward.kernels.ops.fp8_linear.scales import LENGTH
from peakward.kernels.ops.fp8_linear.triton import (
    cast_both,
    cast_delayed_both,
    cast_delayed_rows,
    cast_rows,
)

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def _both(m: int, k: int, source: torch.dtype, target: torch.dtype) -> None:
    x = torch.empty(m, k, dtype=source, device="meta")
    scale = torch.empty((), device="meta")
    cast_both(x, scale, target)
    cast_rows(x, scale, target)
    history = torch.empty(LENGTH, dtype=torch.int32, device="meta")
    cast_delayed_both(x, history, target)
    cast_delayed_rows(x, history, target)


LAUNCHES = {
    f"{m} × {k} {source} {target}": Launch(
        lambda m=m, k=k, source=source, target=target: _both(m, k, source, target),
        registers=120,
        shared_bytes=16 << 10,
        capabilities=(90,),
    )
    for m, k, source, target in (
        (8192, 2560, torch.bfloat16, E4M3),
        (8192, 20480, torch.bfloat16, E5M2),
        (7680, 2560, torch.float32, E4M3),
        (48, 80, torch.float16, E5M2),
    )
}
