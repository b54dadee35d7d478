"""Products in each format: near to fp64 as far as its digits allow."""

import pytest

from peakward.lab.micro import formats
from peakward.lab.micro.subjects import build
from peakward.lab.micro.work import piece_work
from peakward.records.case import MicroCase
from peakward.records.errors import PeakwardError

ROUNDOFF = {"fp32": 2**-24, "fp16": 2**-11, "bf16": 2**-8, "fp8 e4m3": 2**-4, "fp8 e5m2": 2**-3}


def case(subject, piece, sizes, precision="fp32"):
    return MicroCase(subject=subject, piece=piece, sizes=sizes, precision=precision, device="cpu")


@pytest.mark.parametrize("name", [*ROUNDOFF, "int8"])
def test_a_product_errs_by_its_operands_rounding(name):
    found = piece_work(build(case("matmul-formats", name, (64,))))
    # Independent errors of both operands, over the largest of 4096 values, which is some 4 deviations.
    roundoff = ROUNDOFF.get(name, 1 / 127)
    assert roundoff / 30 < found.difference < 4 * roundoff + 2**-20
    assert found.flops == 2 * 64**3


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_scores_are_of_all_queries_with_all_keys(name):
    found = piece_work(build(case("scores", name, (2, 2, 32, 16))))
    assert found.flops == 2 * 4 * 32 * 32 * 16
    assert found.difference < 4 * ROUNDOFF[name] + 2**-20


@pytest.mark.parametrize(
    ("subject", "piece", "sizes", "precision"),
    [
        ("matmul-formats", "tf32", (16,), "tf32"),
        ("matmul-formats", "fp32", (16,), "bf16"),
        ("matmul-formats", "int4", (16,), "fp32"),
        ("scores", "int8", (1, 1, 16, 16), "fp32"),
    ],
)
def test_what_is_not_multiplied_is_refused(subject, piece, sizes, precision):
    with pytest.raises(PeakwardError, match="expected"):
        build(case(subject, piece, sizes, precision))


def test_every_format_has_a_bound_here():
    assert set(formats.PIECES) - {"tf32"} == {*ROUNDOFF, "int8"}
