"""What the kernels of products with quantised weights are started with."""

from functools import partial

import torch

from launch import Launch
from peakward.kernels.ops.quantized_matmul.triton import int4_matmul, int8_matmul

K, N = 4096, 14336


def _int4(
    m: int,
    *,
    n: int = N,
    group: int = 128,
    zeros: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    with torch.device("meta"):
        weight = torch.empty(K // 128, n, 16, dtype=torch.int32)
        scale = torch.empty(K // group, n, dtype=dtype)
        zero = torch.empty(K // group, n, dtype=torch.uint8) if zeros else None
        int4_matmul(torch.empty(m, K, dtype=dtype), weight, scale, zero)


def _int8(m: int, *, n: int = N, groups: int = 1, dtype: torch.dtype = torch.bfloat16) -> None:
    with torch.device("meta"):
        weight = torch.empty(n, K, dtype=torch.int8)
        int8_matmul(torch.empty(m, K, dtype=dtype), weight, torch.empty(groups, n))


# 128 registers: 16 warps on a multiprocessor.
LAUNCHES = {
    "int4 1": Launch(partial(_int4, 1), registers=128, shared_bytes=8 << 10),
    "int4 1 of one tile": Launch(partial(_int4, 1, n=8192), registers=80, shared_bytes=8 << 10),
    "int4 1 of 16 channels": Launch(partial(_int4, 1, n=4096), registers=128, shared_bytes=8 << 10),
    "int4 1 group 32": Launch(partial(_int4, 1, group=32), registers=128, shared_bytes=8 << 10),
    # Where a thread took more than 128 a wave of programs would not be resident.
    "int4 zeros 1": Launch(
        partial(_int4, 1, zeros=True), registers=128, shared_bytes=8 << 10, stack_bytes=24
    ),
    "int4 16": Launch(partial(_int4, 16), registers=128, shared_bytes=16 << 10),
    "int4 16 group 32": Launch(
        partial(_int4, 16, group=32), registers=112, shared_bytes=32 << 10, capabilities=(90,)
    ),
    "int4 16 that share x": Launch(
        partial(_int4, 16, n=4096), registers=112, shared_bytes=32 << 10
    ),
    "int4 split": Launch(partial(_int4, 1, n=512), registers=128, shared_bytes=8 << 10),
    "int4 32": Launch(partial(_int4, 32), registers=128, shared_bytes=56 << 10),
    "int4 64": Launch(partial(_int4, 64), registers=176, shared_bytes=88 << 10),
    "int4 64 group 32": Launch(
        partial(_int4, 64, group=32), registers=192, shared_bytes=88 << 10, capabilities=(90,)
    ),
    # Six registers of a thread: the assembler's choice, of 128 where it may take 255.
    "int4 64 group 32 sm_80": Launch(
        partial(_int4, 64, group=32),
        registers=144,
        shared_bytes=72 << 10,
        stack_bytes=24,
        capabilities=(80,),
    ),
    "int4 zeros 16": Launch(
        partial(_int4, 16, zeros=True, group=32), registers=184, shared_bytes=48 << 10
    ),
    "int4 zeros 64": Launch(
        partial(_int4, 64, zeros=True, group=32), registers=208, shared_bytes=88 << 10
    ),
    "int4 fp16 4": Launch(
        partial(_int4, 4, dtype=torch.float16), registers=128, shared_bytes=8 << 10
    ),
    "int4 fp32 4": Launch(
        partial(_int4, 4, dtype=torch.float32), registers=128, shared_bytes=32 << 10
    ),
    "int8 1": Launch(partial(_int8, 1), registers=128, shared_bytes=32 << 10),
    "int8 groups 1": Launch(
        partial(_int8, 1, groups=K // 128), registers=128, shared_bytes=32 << 10
    ),
    "int8 4": Launch(partial(_int8, 4), registers=128, shared_bytes=72 << 10),
    "int8 16": Launch(partial(_int8, 16), registers=160, shared_bytes=80 << 10),
    "int8 tiles 16": Launch(
        partial(_int8, 16, groups=K // 128), registers=160, shared_bytes=84 << 10
    ),
    "int8 32": Launch(partial(_int8, 32), registers=128, shared_bytes=96 << 10),
    "int8 64": Launch(partial(_int8, 64), registers=192, shared_bytes=104 << 10),
    # Of 128 channels two programs are resident: 255 registers by 128 threads, and half of what is shared.
    "int8 32 of 128 channels": Launch(
        partial(_int8, 32, n=2 * N), registers=176, shared_bytes=104 << 10
    ),
    "int8 64 of 128 channels": Launch(
        partial(_int8, 64, n=2 * N), registers=255, shared_bytes=104 << 10, capabilities=(90,)
    ),
    "int8 tiles 64 of 128 channels": Launch(
        partial(_int8, 64, n=2 * N, groups=K // 128),
        registers=255,
        shared_bytes=104 << 10,
        capabilities=(90,),
    ),
    # Six registers of a thread, and with groups twelve: without wgmma both sides pass through them.
    "int8 64 of 128 channels sm_80": Launch(
        partial(_int8, 64, n=2 * N),
        registers=255,
        shared_bytes=72 << 10,
        stack_bytes=24,
        capabilities=(80,),
    ),
    "int8 tiles 64 of 128 channels sm_80": Launch(
        partial(_int8, 64, n=2 * N, groups=K // 128),
        registers=255,
        shared_bytes=72 << 10,
        stack_bytes=48,
        capabilities=(80,),
    ),
    "int8 groups 16": Launch(
        partial(_int8, 16, groups=K // 32), registers=144, shared_bytes=64 << 10
    ),
    "int8 fp32 4": Launch(
        partial(_int8, 4, dtype=torch.float32), registers=128, shared_bytes=32 << 10
    ),
}
