"""What contests of kernels over rows share."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from kernels.contest import OURS, Arm
from peakward.kernels.ops.rows.candidates import many_tiles_a_program, spread
from peakward.kernels.ops.rows.layout import RowSettings, multiprocessors
from peakward.kernels.ops.rows.norm.settings import SpreadSettings

Outputs = Tensor | tuple[Tensor, ...]
Settings = TypeVar("Settings", bound=RowSettings | SpreadSettings)
MODES = ("default", "max-autotune-no-cudagraphs")
BF16_SHAPES = (
    (32768, 1024),
    (32768, 2560),
    (16384, 4096),
    (16384, 8192),
    (32768, 5000),
    (8192, 10000),
    (8192, 20000),
    (4096, 40000),
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


FORWARD_SHAPES = ((32768, 2560), (32768, 5000), (8192, 16384), (2048, 65536))
"""Rows and columns of norms whose forward passes are swept."""
BACKWARD_SHAPES = ((32768, 1024), (32768, 2560), (16384, 4096), (8192, 16384), (2048, 65536))
"""Rows and columns of norms whose backward passes are swept."""


def backward_candidates(
    rule: RowSettings | SpreadSettings, itemsize: int
) -> tuple[RowSettings | SpreadSettings, ...]:
    if isinstance(rule, SpreadSettings):
        return spread(itemsize)
    return many_tiles_a_program(rule, multiprocessors(torch.device("cuda")))
