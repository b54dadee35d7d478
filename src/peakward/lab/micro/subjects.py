"""The subjects of pieces of code, each with its module."""

from collections.abc import Callable

from peakward.lab.micro import (
    addition,
    cross_entropy,
    formats,
    heads,
    matmul,
    matmul_operands,
    projection,
    rms_norm,
    softmax,
    stored_weights,
    sums,
    view,
)
from peakward.lab.micro.piece import Piece
from peakward.records.case import MicroCase, MicroSubject

BUILDERS: dict[MicroSubject, Callable[[MicroCase], Piece]] = {
    "softmax": softmax.build,
    "rms-norm": rms_norm.build,
    "cross-entropy": cross_entropy.build,
    "matmul": matmul.build,
    "matmul-operands": matmul_operands.build,
    "addition": addition.build,
    "heads": heads.build,
    "projection": projection.build,
    "view": view.build,
    "matmul-formats": formats.build_matmul,
    "scores": formats.build_scores,
    "sum": sums.build_sum,
    "dot": sums.build_dot,
    "variance": sums.build_variance,
    "stored-weights": stored_weights.build,
}


def build(case: MicroCase) -> Piece:
    """The piece with its inputs, on its device.

    Raises:
        PeakwardError: the subject has no such piece, it takes other sizes, or it cannot run there.
    """
    return BUILDERS[case.subject](case)
