"""Sums whose terms are added one after the other, in several types: of equal terms, of products, of squares.

Each addition rounds to the type of the sum. Where a term is below half of the sum's last digit, the sum no
longer grows.
"""

import torch
from torch import Tensor

from peakward.lab.micro.piece import Piece, chosen, sizes
from peakward.records.case import MicroCase

TERM = 0.01
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
SUMS: dict[str, tuple[torch.dtype, torch.dtype, bool]] = {
    "fp32": (FP32, FP32, False),
    "fp16": (FP16, FP16, False),
    "bf16": (BF16, BF16, False),
    "fp32 of fp16 terms": (FP32, FP16, False),
    "fp32 of cast fp16 terms": (FP32, FP16, True),
    "fp32 of bf16 terms": (FP32, BF16, False),
}
"""The type of the sum, that of the terms, and whether each term is cast before it is added."""
DOTS: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "fp32 one by one": (FP32, FP32),
    "fp16 one by one": (FP16, FP16),
    "bf16 one by one": (BF16, BF16),
    "fp16 products, fp32 sum": (FP16, FP32),
    "bf16 products, fp32 sum": (BF16, FP32),
    "fp16 by torch": (FP16, None),
    "bf16 by torch": (BF16, None),
}
"""The type of the vectors, and that of the sum; None: as torch's own dot product adds."""
VARIANCES: dict[str, tuple[torch.dtype, bool]] = {
    f"{name} {way}": (dtype, way == "mean of squares")
    for name, dtype in (("fp32", FP32), ("fp16", FP16), ("bf16", BF16))
    for way in ("two passes", "mean of squares")
}
"""The type of all arithmetic, and whether the variance is E[x²] - E[x]², in one pass."""


def build_sum(case: MicroCase) -> Piece:
    """Builds a case of sizes (n,): 0.01, n times."""
    (n,) = sizes(case, "n")
    kind, of_terms, casts = chosen(case, SUMS)
    term = torch.tensor(TERM, dtype=of_terms, device=case.device)

    def run() -> Tensor:
        total = torch.zeros((), dtype=kind, device=case.device)
        for _ in range(n):
            total += term.type(kind) if casts else term
        return total

    return Piece(
        run=run,
        inputs=(term,),
        flops=n,
        oracle=lambda: torch.tensor(TERM * n, dtype=torch.float64, device=case.device),
    )


def build_dot(case: MicroCase) -> Piece:
    """Builds a case of sizes (n,): two vectors of numbers from 0 to 1, so that the sum grows all the time."""
    (n,) = sizes(case, "n")
    dtype, kind = chosen(case, DOTS)
    generator = torch.Generator(case.device).manual_seed(case.seed)
    drawn = torch.rand((2, n), generator=generator, device=case.device)
    a, b = drawn.to(dtype).unbind(0)
    run = (lambda: a @ b) if kind is None else (lambda: _one_by_one((a * b).unbind(0), kind))
    return Piece(run=run, inputs=(a, b), flops=2 * n, oracle=lambda: a.double() @ b.double())


def build_variance(case: MicroCase) -> Piece:
    """Builds a case of sizes (n, mean): the variance of n normal numbers around that mean, as a LayerNorm has
    it."""
    n, mean = sizes(case, "n", "mean")
    dtype, is_one_pass = chosen(case, VARIANCES)
    generator = torch.Generator(case.device).manual_seed(case.seed)
    drawn = torch.randn((n,), generator=generator, device=case.device) + mean
    x = drawn.to(dtype)

    def run() -> Tensor:
        average = _mean(x)
        if is_one_pass:
            return _mean(x * x) - average * average
        return _mean((x - average) ** 2)

    return Piece(run=run, inputs=(x,), flops=4 * n, oracle=lambda: x.double().var(correction=0))


def _mean(x: Tensor) -> Tensor:
    return _one_by_one(x.unbind(0), x.dtype) / x.numel()


def _one_by_one(terms: tuple[Tensor, ...], kind: torch.dtype) -> Tensor:
    total = torch.zeros((), dtype=kind, device=terms[0].device)
    for each in terms:
        total += each
    return total
