"""What contests of kernels over rows share."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kernels.contest import OURS, Arm
from peakward.lab.ops.rows.layout import RowSettings, power_of_two

MODES = ("default", "max-autotune-no-cudagraphs")
BF16_SHAPES = ((32768, 1024), (16384, 8192), (32768, 5000), (4096, 32768), (2048, 65536))
"""Rows and columns; 5000 is nobody's power of two."""


def random_rows(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random normal, the same for every caller of a seed."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=dtype)


def built(call: Arm) -> Callable[[], Arm]:
    """A builder of an arm that is there already."""
    return lambda: call


def compiled(function: Callable[..., object], *inputs: object, mode: str = "default"):
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


def backward_of(forward: Callable[..., Tensor], inputs: tuple[Tensor, ...], gradient: Tensor):
    """A builder of the backward pass alone, of gradients of all inputs."""

    def build() -> Arm:
        torch._dynamo.reset()
        leaves = tuple(each.detach().requires_grad_() for each in inputs)
        result = forward(*leaves)
        return lambda: torch.autograd.grad(result, leaves, gradient, retain_graph=True)

    return build


def compiled_backward_in_every_mode(
    forward: Callable[..., Tensor], inputs: tuple[Tensor, ...], gradient: Tensor
) -> dict[str, Callable[[], Arm]]:
    return {
        f"compile {mode}": backward_of(
            torch.compile(forward, mode=mode, fullgraph=True, dynamic=False), inputs, gradient
        )
        for mode in MODES
    }


def swept(
    call: Callable[[RowSettings], Tensor | tuple[Tensor, ...]],
    candidates: tuple[RowSettings, ...],
    default: RowSettings,
) -> Mapping[str, Callable[[], Arm]]:
    """Our kernel at every setting; the one that it would choose is `peakward`."""
    arms = {OURS: built(lambda: call(default))}
    for each in candidates:
        if each != default:
            name = "r{} c{} w{} p{} s{}".format(*("-" if part is None else part for part in each))
            arms[name] = built(lambda each=each: call(each))
    return arms


def candidates(
    width: int, *, pieces: tuple[int, ...] = (), programs_of: tuple[int, ...] = (), most_warps=32
) -> tuple[RowSettings, ...]:
    """Whole rows, up to 8 a tile, with 8 to 64 elements a thread, one tile a program or pipelined
    over `programs_of` programs a multiprocessor; and pieces of the sizes given."""
    whole = power_of_two(width)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    chosen = []
    for columns in (whole, *(each for each in pieces if each < width)):
        for each in (8, 16, 32, 64):
            for rows in (1, 2, 4, 8):
                warps = rows * columns // (32 * each)
                if not 2 <= warps <= most_warps or (columns < width and rows > 1):
                    continue
                if rows > 1 and warps > 8:
                    continue
                chosen.append(RowSettings(rows, columns, warps))
                for count in programs_of:
                    for stages in (2, 3):
                        programs = count * multiprocessors
                        chosen.append(RowSettings(rows, columns, warps, programs, stages))
    return tuple(chosen)
