"""What the kernels of products with quantised weights are started with."""

from functools import partial

import torch

from launch import Launch
from peakward.lab.ops.quantized_matmul.triton import int4_matmul, int8_matmul

K, N = 4096, 14336


def _int4(
    m: int,
    *,
    group: int = 128,
    zeros: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    with torch.device("meta"):
        weight = torch.empty(K // group, N, group // 2, dtype=torch.uint8)
        scale = torch.empty(K // group, N, dtype=dtype)
        zero = torch.empty(K // group, N, dtype=torch.uint8) if zeros else None
        int4_matmul(torch.empty(m, K, dtype=dtype), weight, scale, zero)


def _int8(m: int, *, groups: int = 1, dtype: torch.dtype = torch.bfloat16) -> None:
    with torch.device("meta"):
        weight = torch.empty(N, K, dtype=torch.int8)
        int8_matmul(torch.empty(m, K, dtype=dtype), weight, torch.empty(groups, N))


LAUNCHES = {
    "int4 1": Launch(partial(_int4, 1), registers=128, shared_bytes=56 << 10),
    "int4 4": Launch(partial(_int4, 4), registers=128, shared_bytes=56 << 10),
    "int4 32": Launch(partial(_int4, 32), registers=128, shared_bytes=56 << 10),
    "int4 64": Launch(partial(_int4, 64), registers=208, shared_bytes=112 << 10),
    "int4 zeros 16": Launch(
        partial(_int4, 16, zeros=True, group=32), registers=128, shared_bytes=56 << 10
    ),
    "int4 fp16 16": Launch(
        partial(_int4, 16, dtype=torch.float16), registers=128, shared_bytes=56 << 10
    ),
    "int8 1": Launch(partial(_int8, 1), registers=128, shared_bytes=56 << 10),
    "int8 4": Launch(partial(_int8, 4), registers=128, shared_bytes=56 << 10),
    "int8 64": Launch(partial(_int8, 64), registers=192, shared_bytes=112 << 10),
    "int8 groups 16": Launch(
        partial(_int8, 16, groups=K // 64), registers=128, shared_bytes=56 << 10
    ),
}
