"""The product of two square matrices: as loops in Python, by NumPy, and by torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peakward.lab.micro.piece import Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase
from peakward.records.errors import PeakwardError

ON_CPU = ("python loops", "numpy")


def loops(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    """Three nested loops over floats, which are fp64."""
    n = len(a)
    product = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            total = 0.0
            for k in range(n):
                total += a[i][k] * b[k][j]
            product[i][j] = total
    return product


def by_loops(a: Tensor, b: Tensor) -> Callable[[], list[list[float]]]:
    rows, columns = a.tolist(), b.tolist()
    return lambda: loops(rows, columns)


def by_numpy(a: Tensor, b: Tensor) -> Callable[[], Any]:
    left, right = a.numpy(), b.numpy()
    return lambda: np.matmul(left, right)


def by_torch(a: Tensor, b: Tensor) -> Callable[[], Tensor]:
    return lambda: torch.matmul(a, b)


PIECES: dict[str, Callable[[Tensor, Tensor], Callable[[], Any]]] = {
    "python loops": by_loops,
    "numpy": by_numpy,
    "torch": by_torch,
}
"""Functions that turn the inputs into their own containers once and return the work to time."""


def build(case: MicroCase) -> Piece:
    """Builds a case of sizes (n,): n × n times n × n.

    Raises:
        PeakwardError: Python or NumPy on a GPU, or in a type that they do not have.
    """
    (n,) = sizes(case, "n")
    make = chosen(case, PIECES)
    if case.piece in ON_CPU and (case.device != "cpu" or case.precision not in ("fp64", "fp32")):
        raise PeakwardError(
            f"expected {case.piece} on cpu in fp64 or fp32, got {case.device} in {case.precision}"
        )
    a, b = drawn(case, 2, n, n)
    return Piece(
        run=make(a, b),
        inputs=(a, b),
        flops=2 * n**3,
        oracle=lambda: a.double() @ b.double(),
        dispatched=case.piece == "torch",
    )
