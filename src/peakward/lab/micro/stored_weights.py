"""Some rows times the transposed weight as it is stored: dense, in 8 or 4 bits, in those of torchao, or in 8
bits by inputs in 8.

Weights are rounded before anything is timed, inputs in every step. On a GPU each piece is one CUDA graph:
its parts wait for no host, as in a step of decode.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from peakward.kernels.ops.quantized_matmul import reference
from peakward.kernels.ops.quantized_matmul.api import int4_matmul, int8_matmul
from peakward.kernels.ops.quantized_matmul.calibrated import int8_rows
from peakward.lab.micro.piece import Piece, chosen, drawn, sizes
from peakward.lab.models import torchao_weights
from peakward.levers.weights import INT4_GROUP
from peakward.records.case import MicroCase
from peakward.records.errors import PeakwardError

WARM_UPS = 3
LEAST_ROWS = 32
"""The rows that cuBLAS is given at least: it takes no 16 of int8."""
Product = Callable[[Tensor], Tensor]


def dense(weight: Tensor) -> Product:
    """A weight in the type of the inputs."""
    return lambda x: linear(x, weight)


def int8(weight: Tensor) -> Product:
    """Peakward's kernel, which widens the weight."""
    stored, scale = reference.int8_weight(weight)
    scale = scale.to(weight.dtype)
    return lambda x: int8_matmul(x, stored, scale)


def int4(weight: Tensor) -> Product:
    """The same, in groups of `INT4_GROUP` inputs."""
    stored, scale = reference.int4_weight(weight, group=INT4_GROUP)
    scale = scale.to(weight.dtype)
    return lambda x: int4_matmul(x, stored, scale)


def int8_of_torchao(weight: Tensor) -> Product:
    """torchao's, compiled, as it is made for: in eager code it widens the whole weight in every call."""
    return torch.compile(torchao_weights.int8_linear(weight))


def int4_of_torchao(weight: Tensor) -> Product:
    """The same, in groups of `INT4_GROUP` inputs."""
    return torch.compile(torchao_weights.int4_linear(weight, group=INT4_GROUP))


def int8_activations(weight: Tensor) -> Product:
    """torch's product of integers; its inputs are rounded row by row."""
    stored, scale = reference.int8_weight(weight)
    transposed = stored.t()

    def product(x: Tensor) -> Tensor:
        rows, row_scale = int8_rows(x)
        whole = torch._int_mm(pad(rows, (0, 0, 0, max(0, LEAST_ROWS - len(rows)))), transposed)
        return (whole[: len(rows)] * row_scale * scale).to(x.dtype)

    return product


PIECES: dict[str, Callable[[Tensor], Product]] = {
    "dense": dense,
    "int8": int8,
    "int4": int4,
    "int8, torchao": int8_of_torchao,
    "int4, torchao": int4_of_torchao,
    "int8 activations": int8_activations,
}
ON_GPU = ("int4", "int4, torchao")
"""Pieces whose kernel is for a GPU alone."""


def build(case: MicroCase) -> Piece:
    """Builds a case of sizes (rows, inputs, outputs).

    Raises:
        PeakwardError: a kernel of a GPU on a CPU, or sizes that integers are not multiplied in.
    """
    rows, n_in, n_out = sizes(case, "rows", "inputs", "outputs")
    store = chosen(case, PIECES)
    if case.piece in ON_GPU and case.device != "cuda":
        raise PeakwardError(f"expected {case.piece} on cuda, got {case.device}")
    if n_in % INT4_GROUP or n_out % 8:
        raise PeakwardError(
            f"expected inputs in groups of {INT4_GROUP} and outputs of 8, got {n_in} and {n_out}"
        )
    numbers = drawn(case, rows + n_out, n_in)
    x, weight = numbers[:rows], numbers[rows:] / n_in**0.5
    product = store(weight)
    return Piece(
        run=captured(product, x) if case.device == "cuda" else lambda: product(x),
        inputs=(x, weight),
        flops=2 * rows * n_in * n_out,
        oracle=lambda: linear(x.double(), weight.double()),
        dispatched=False,
    )


@torch.no_grad()
def captured(product: Product, x: Tensor) -> Callable[[], Tensor]:
    """The product as one launch, whose result lies in the same memory every time."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            product(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = product(x)

    def run() -> Tensor:
        graph.replay()
        return out

    return run
