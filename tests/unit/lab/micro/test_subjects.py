"""Every piece that a study plans is one that the lab has."""

from typing import get_args

import pytest

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
from peakward.lab.micro.piece import COMPILED
from peakward.lab.micro.subjects import BUILDERS
from peakward.records.case import MicroSubject
from peakward.studies import accumulation, fusion, layout, quantization, vectorization

PIECES = {
    "softmax": softmax.PIECES,
    "rms-norm": rms_norm.PIECES,
    "cross-entropy": cross_entropy.PIECES,
    "matmul": matmul.PIECES,
    "matmul-operands": matmul_operands.PIECES,
    "addition": addition.PIECES,
    "heads": heads.PIECES,
    "projection": projection.PIECES,
    "view": view.PIECES,
    "matmul-formats": formats.PIECES,
    "scores": tuple(formats.FLOATS),
    "sum": sums.SUMS,
    "dot": sums.DOTS,
    "variance": sums.VARIANCES,
    "stored-weights": stored_weights.PIECES,
}


def test_every_subject_is_built():
    assert set(BUILDERS) == set(PIECES) == set(get_args(MicroSubject))


@pytest.mark.parametrize("planned", [accumulation.PIECES, fusion.PIECES, layout.PIECES])
def test_what_is_planned_is_there_and_all_of_it_is_planned(planned):
    for subject, pieces in planned.items():
        assert sorted(pieces) == sorted(PIECES[subject])


def test_names_that_studies_know_are_the_labs():
    assert fusion.COMPILED == COMPILED
    assert tuple(stored_weights.PIECES) == quantization.PRODUCTS
    assert quantization.KERNELS == stored_weights.ON_GPU
    ways = {vectorization.LOOPS, vectorization.NUMPY, vectorization.TORCH}
    assert ways == set(matmul.PIECES)
    assert set(matmul.ON_CPU) == {vectorization.LOOPS, vectorization.NUMPY}
