"""Products of few rows with weights of 8 and 4 bits, against torch's own."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.contest import OURS, Arm, Contest
from peakward.kernels.ops.quantized_matmul import api, reference, triton
from peakward.kernels.ops.quantized_matmul.triton import Digits, Direct, Row, Shared
from peakward.kernels.ops.quantized_matmul.triton.settings import Settings

WIDTHS = (
    (4096, 4096),
    (4096, 14336),
    (14336, 4096),
    (2560, 10240),
    (8192, 8192),
    (4096, 128256),
    (4096 + 128, 5000),
)
"""(k, n)."""
AUTOTUNED = ((4096, 14336),)
"""Where a compiled peer may choose among templates too: it takes long."""
ROWS = (1, 4, 16, 64)
GROUP = 128
SWEPT = ((4096, 14336), (8192, 8192))
FEW_ROWS = (
    Direct(1, 16, 8, 8, 1),
    Direct(1, 16, 8, 8, 2),
    Direct(1, 32, 8, 4, 1),
    Direct(1, 32, 8, 4, 2),
    Direct(1, 32, 8, 8, 1),
)
MORE_ROWS = (
    Direct(1, 16, 16, 8, 1),
    Direct(1, 32, 16, 4, 1),
    Direct(1, 32, 16, 8, 1),
    Shared(1, 16, 8, 4),
    Shared(2, 16, 8, 4),
)
DIGITS = tuple(
    Digits(n_splits, channels, rows, warps, n_stages)
    for n_splits in (1, 2)
    for channels, warps, n_stages in ((64, 4, 5), (128, 4, 4), (128, 8, 3), (256, 8, 4))
    for rows in (8, 16, 64)
)
TRIED: dict[tuple[int, int, int], tuple[Settings, ...]] = {
    **{(4, group, m): FEW_ROWS for group in (128, 32) for m in (1, 8)},
    **{(4, group, 16): MORE_ROWS for group in (128, 32)},
    (4, 128, 32): (Shared(1, 32, 8, 4), Shared(2, 32, 8, 4), Shared(1, 32, 4, 4)),
    (4, 128, 64): (Shared(1, 64, 8, 4), Shared(1, 64, 4, 4), Shared(2, 64, 8, 4)),
    (8, 4096, 1): (
        Row(1, channels=4, columns=1024, n_stages=3),
        Row(1, channels=4),
        Row(1, channels=16),
        Row(1, n_stages=3),
        Row(1, n_stages=5),
    ),
    **{
        (8, 4096, m): tuple(each for each in DIGITS if each.rows == rows)
        for m, rows in ((4, 8), (16, 16), (64, 64))
    },
}
"""By bits, group and rows of x: what a sweep starts the kernel with."""


def contests() -> Iterable[Contest]:
    for k, n in WIDTHS:
        for m in ROWS:
            yield _int4(m, k, n, group=GROUP, zeros=False)
    for group, zeros in ((32, False), (64, False), (128, True)):
        for m in (1, 16):
            yield _int4(m, 4096, 14336, group=group, zeros=zeros)
    for k, n in WIDTHS:
        for m in (1, 16):
            yield _int8(m, k, n)


def sweep() -> Iterable[Contest]:
    """Our kernel at other settings; the one named peakward has its own choice."""
    for bits, group, m in TRIED:
        for k, n in SWEPT if m >= 16 else SWEPT[:1]:
            yield _swept(m, k, n, bits=bits, group=group)


def _shared(make: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    """Made when first asked for, once."""
    made: list[Tensor] = []

    def get() -> list[Tensor]:
        if not made:
            made.extend(make())
        return made

    return get


def _drawn(m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    options = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    return torch.randn(m, k, **options), torch.randn(n, k, **options) / k**0.5


def _int4_inputs(m: int, k: int, n: int, *, group: int, zeros: bool) -> list[Tensor]:
    """x, the packed weight, bf16 scales and any zeros."""
    x, weight = _drawn(m, k, n)
    quantise = reference.int4_weight_with_zeros if zeros else reference.int4_weight
    held, scale, *zero = quantise(weight, group=group)
    return [x, held, scale.bfloat16(), *zero]


def _int8_inputs(m: int, k: int, n: int) -> list[Tensor]:
    x, weight = _drawn(m, k, n)
    held, scale = reference.int8_weight(weight)
    return [x, held, scale.bfloat16()]


def _compiled(function: Callable[..., Tensor], mode: str | None = None) -> Callable[..., Tensor]:
    return torch.compile(function, fullgraph=True, dynamic=False, mode=mode)


def _linear(x: Tensor, weight: Tensor) -> Arm:
    return lambda: F.linear(x, weight)


def _int4(m: int, k: int, n: int, *, group: int, zeros: bool) -> Contest:
    get = _shared(partial(_int4_inputs, m, k, n, group=group, zeros=zeros))

    def dequantized(dtype: torch.dtype) -> Tensor:
        _, held, scale, *zero = get()
        return reference.int4_dequantized(
            held, scale, zero[0] if zero else None, dtype, group=group
        )

    def tinygemm() -> Arm:
        x, held, scale, *zero = get()
        stored = reference.unpacked(held)
        # Its bytes have the even column in the high nibble, and its zeros lie at 8.
        weight = torch._convert_weight_to_int4pack(stored[:, ::2] << 4 | stored[:, 1::2], 8)
        origins = zero[0].bfloat16() if zero else torch.full_like(scale, 8)
        pairs = torch.stack((scale, (8 - origins) * scale), 2).contiguous()
        return lambda: torch._weight_int4pack_mm(x, weight, group, pairs)

    return Contest(
        operator="quantized_matmul",
        shape={
            "weight": f"int4, {group}{', zeros' if zeros else ''}",
            "m": m,
            "k": k,
            "n": n,
        },
        arms={
            OURS: lambda: partial(api.int4_matmul, *get()),
            "bf16 weight": lambda: _linear(get()[0], dequantized(torch.bfloat16)),
            "torch's own": tinygemm,
            "compiled": lambda: partial(_compiled(reference.int4_matmul), *get()),
        },
        n_bytes=_moved_of(group, zeros, m, k, n),
        reads=m <= 16,
        exact=lambda: get()[0].double() @ dequantized(torch.float64).t(),
    )


def _moved_of(group: int, zeros: bool, m: int, k: int, n: int) -> int:
    """Nibbles, bf16 scales, zeros of a byte, x and the output."""
    return n * k // 2 + n * k // group * (3 if zeros else 2) + 2 * m * (k + n)


def _int8(m: int, k: int, n: int) -> Contest:
    get = _shared(partial(_int8_inputs, m, k, n))

    def dequantized(dtype: torch.dtype) -> Tensor:
        return reference.int8_dequantized(*get()[1:], dtype)

    def torchs() -> Arm:
        x, held, scale = get()
        return lambda: torch._weight_int8pack_mm(x, held, scale[0])

    def autotuned() -> Arm:
        return partial(_compiled(reference.int8_matmul, "max-autotune-no-cudagraphs"), *get())

    return Contest(
        operator="quantized_matmul",
        shape={"weight": "int8", "m": m, "k": k, "n": n},
        arms={
            OURS: lambda: partial(api.int8_matmul, *get()),
            "bf16 weight": lambda: _linear(get()[0], dequantized(torch.bfloat16)),
            "torch's own": torchs,
            "compiled": lambda: partial(_compiled(reference.int8_matmul), *get()),
            **({"compiled max-autotune": autotuned} if (k, n) in AUTOTUNED else {}),
        },
        n_bytes=n * k + 2 * n + 2 * m * (k + n),
        reads=True,
        exact=lambda: get()[0].double() @ dequantized(torch.float64).t(),
    )


def _swept(m: int, k: int, n: int, *, bits: int, group: int) -> Contest:
    if bits == 4:
        get = _shared(partial(_int4_inputs, m, k, n, group=group, zeros=False))
        launch, defined = triton.int4_matmul, reference.int4_matmul
        settings_for = triton.word_settings_for
    else:
        get = _shared(partial(_int8_inputs, m, k, n))
        launch, defined = triton.int8_matmul, reference.int8_matmul
        settings_for = triton.byte_settings_for
    chosen = settings_for(
        m=m,
        n=n,
        n_tiles=k // 128,
        group=min(group, 128),
        dtype=torch.bfloat16,
        n_multiprocessors=triton.H100_MULTIPROCESSORS,
    )

    def at(settings: Settings) -> Arm:
        return partial(launch, *get(), settings=settings)

    tried = [each for each in TRIED[bits, group, m] if each != chosen]
    return Contest(
        operator="quantized_matmul",
        shape={
            "weight": f"int{bits}, {group}",
            "m": m,
            "k": k,
            "n": n,
            "chosen": _named(chosen),
        },
        arms={
            OURS: lambda: at(chosen),
            **{_named(each): partial(at, each) for each in tried},
        },
        n_bytes=(
            _moved_of(group, False, m, k, n) if bits == 4 else n * k + 2 * n + 2 * m * (k + n)
        ),
        reads=True,
        exact=lambda: defined(get()[0].double(), *get()[1:]),
    )


def _named(settings: Settings) -> str:
    return f"{type(settings).__name__.lower()} {' '.join(map(str, settings))}"
