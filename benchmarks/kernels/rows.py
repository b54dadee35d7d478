"""What contests of kernels over rows share."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kernels.contest import OURS, Arm
from peakward.lab.ops.rows.layout import RowSettings, power_of_two

Outputs = Tensor | tuple[Tensor, ...]
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
    call: Callable[[RowSettings], Outputs],
    candidates: tuple[RowSettings, ...],
    default: RowSettings,
) -> Mapping[str, Callable[[], Arm]]:
    """Our kernel at every setting; the one that it would choose is `peakward`."""
    arms = {}
    for each in candidates:
        if each != default:
            name = "r{} c{} w{} p{} s{}".format(*("-" if part is None else part for part in each))
            arms[name] = built(lambda each=each: call(each))
    return {**arms, OURS: built(lambda: call(default))}


def candidates(
    width: int,
    *,
    pieces: tuple[int, ...] = (),
    pipelines: tuple[tuple[int, int], ...] = ((1, 3), (2, 2)),
) -> tuple[RowSettings, ...]:
    """Whole rows, 1 or 4 a tile, and pieces of the sizes given, with 8 to 64 elements a thread.

    One tile a program, and pipelined: over so many programs a multiprocessor, in so many stages.
    """
    whole = power_of_two(width)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    chosen = []
    for columns in (whole, *(each for each in pieces if each < width)):
        for each in (8, 16, 32, 64):
            for rows in (1, 4) if whole <= 4096 else (1,):
                warps = rows * columns // (32 * each)
                if not 2 <= warps <= 32:
                    continue
                tile = RowSettings(rows, columns, warps)
                chosen.append(tile)
                chosen += [
                    tile._replace(programs=count * multiprocessors, stages=stages)
                    for count, stages in pipelines
                ]
    return tuple(chosen)
