"""Products with stored weights, those that a CPU has."""

import pytest

from peakward.lab.micro.stored_weights import ON_GPU, PIECES
from peakward.records.errors import PeakwardError


@pytest.mark.parametrize("rows", [1, 40])
def test_a_dense_product_is_near_fp64_and_one_of_int8_as_near_as_its_rounding(rows, work, bound):
    dense = work("stored-weights", "dense", rows, 128, 24)
    assert 0 < dense.difference < 2 * bound
    assert dense.flops == 2 * rows * 128 * 24
    rounded = work("stored-weights", "int8 activations", rows, 128, 24)
    # 128 products of two numbers, each rounded to half a step of a largest of some 3 in 127.
    assert dense.difference < rounded.difference < 0.03
    assert rounded.moved_bytes is None


def test_torchaos_weights_of_8_bits_are_as_near_as_ours(work):
    pytest.importorskip("torchao")
    ours, theirs = (
        work("stored-weights", piece, 4, 128, 24) for piece in ("int8", "int8, torchao")
    )
    assert 0 < theirs.difference < 2 * ours.difference < 0.03


@pytest.mark.parametrize("piece", ON_GPU)
def test_kernels_of_a_gpu_are_refused_on_a_cpu(piece, work):
    assert piece in PIECES
    with pytest.raises(PeakwardError, match=f"expected {piece} on cuda"):
        work("stored-weights", piece, 4, 128, 24)


def test_sizes_that_do_not_go_are_refused(work):
    with pytest.raises(PeakwardError, match="in groups of 128 and outputs of 8, got 96 and 24"):
        work("stored-weights", "dense", 4, 96, 24)
