"""What contests of kernels over rows share."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from kernels.contest import OURS, Arm
from peakward.lab.ops.rows.layout import RowSettings, power_of_two
from peakward.lab.ops.rows.norm.settings import SpreadSettings

Outputs = Tensor | tuple[Tensor, ...]
Settings = TypeVar("Settings", bound=RowSettings | SpreadSettings)
MODES = ("default", "max-autotune-no-cudagraphs")
BF16_SHAPES = (
    (32768, 1024),
    (32768, 2560),
    (16384, 4096),
    (16384, 8192),
    (32768, 5000),
    (8192, 16384),
    (4096, 32768),
    (2048, 65536),
)
"""Rows and columns; 5000 is nobody's power of two."""


def random_rows(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random normal, the same for every caller of a seed."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=dtype)


def built(call: Arm) -> Callable[[], Arm]:
    """A builder of an arm that is there already."""
    return lambda: call


def compiled(
    function: Callable[..., object], *inputs: object, mode: str = "default"
) -> Callable[[], Arm]:
    """A builder of the compiled function, called on the inputs: of their shapes alone."""

    def build() -> Arm:
        torch._dynamo.reset()
        fast = torch.compile(function, mode=mode, fullgraph=True, dynamic=False)
        return lambda: fast(*inputs)

    return build


def compiled_in_every_mode(
    function: Callable[..., object], *inputs: object
) -> dict[str, Callable[[], Arm]]:
    return {f"compile {mode}": compiled(function, *inputs, mode=mode) for mode in MODES}


def backward_of(
    forward: Callable[..., Outputs], inputs: tuple[Tensor, ...], gradient: Outputs
) -> Callable[[], Arm]:
    """A builder of the backward pass alone, of gradients of all inputs."""

    def build() -> Arm:
        torch._dynamo.reset()
        leaves = tuple(each.detach().requires_grad_() for each in inputs)
        result = forward(*leaves)
        return lambda: torch.autograd.grad(result, leaves, gradient, retain_graph=True)

    return build


def compiled_backward_in_every_mode(
    forward: Callable[..., Outputs], inputs: tuple[Tensor, ...], gradient: Outputs
) -> dict[str, Callable[[], Arm]]:
    return {
        f"compile {mode}": backward_of(
            torch.compile(forward, mode=mode, fullgraph=True, dynamic=False), inputs, gradient
        )
        for mode in MODES
    }


def swept(
    call: Callable[[Settings], Outputs], candidates: tuple[Settings, ...], default: Settings
) -> Mapping[str, Callable[[], Arm]]:
    """Our kernel at every setting; the one that it would choose is `peakward`."""
    arms = {}
    for each in candidates:
        if each != default:
            name = " ".join("-" if part is None else str(part) for part in each)
            arms[name] = built(lambda each=each: call(each))
    return {**arms, OURS: built(lambda: call(default))}


def candidates(width: int) -> tuple[RowSettings, ...]:
    """Whole rows, 1 or 4 a tile, one tile a program, with 8 to 64 elements a thread."""
    whole = power_of_two(width)
    return tuple(
        RowSettings(rows, whole, rows * whole // (32 * each))
        for each in (8, 16, 32, 64)
        for rows in ((1, 4) if whole <= 4096 else (1,))
        if 2 <= rows * whole // (32 * each) <= 32
    )


FORWARD_SHAPES = ((32768, 2560), (32768, 5000), (8192, 16384), (2048, 65536))
"""Rows and columns of norms whose forward passes are swept."""
BACKWARD_SHAPES = ((32768, 1024), (32768, 2560), (16384, 4096), (8192, 16384), (2048, 65536))
"""Rows and columns of norms whose backward passes are swept."""


def backward_candidates(
    default: RowSettings | SpreadSettings,
) -> tuple[RowSettings | SpreadSettings, ...]:
    """For norms' backward passes: of spread rows columns, warps, programs a multiprocessor and slots; of
    others around the default rows of a tile, programs a multiprocessor, tiles ahead."""
    if isinstance(default, SpreadSettings):
        return tuple(
            SpreadSettings(columns, columns // 1024, programs, slots)
            for columns, programs, slots in (
                *((2048, 6, 4), (2048, 5, 4), (2048, 6, 3), (2048, 7, 3)),
                *((4096, 3, 4), (4096, 3, 3), (4096, 2, 4), (4096, 4, 3), (8192, 2, 3)),
            )
        )
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    more = min(2 * default.warps, default.columns // 256)
    return tuple(
        RowSettings(rows, default.columns, warps, count * multiprocessors, stages)
        for rows, warps in ((default.rows, default.warps), (2 * default.rows, more))
        for count, stages in ((1, 3), (1, 4), (1, 6), (2, 3), (2, 4), (4, 3))
        if rows == default.rows or (count < 4 and stages < 6)
    )
