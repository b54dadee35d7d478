"""Score matrices by the shapes of operators."""

from peakward.diagnose.rules.naive_attention import of_score_matrices
from peakward.records.profile import OperatorRate


def operator(name, dims):
    return OperatorRate(
        name=name,
        dims=dims,
        dtype="float",
        n=1,
        flops=None,
        n_bytes=None,
        kernel_ns=1,
        flops_per_s=None,
        bytes_per_s=None,
        roof_share=None,
    )


SCORES = operator("aten::bmm", "8×512×32, 8×32×512")
SOFTMAX = operator("aten::_softmax", "2×4×512×512")
VALUES = operator("aten::bmm", "8×512×512, 8×512×32")
OF_ATTENTION = (
    SCORES,
    operator("aten::mul", "2×4×512×512"),
    SOFTMAX,
    VALUES,
    operator("aten::_softmax_backward_data", "2×4×512×512, 2×4×512×512"),
    operator("aten::bmm", "8×32×512, 8×512×512"),
)
OTHERS = (
    operator("aten::mm", "1024×128, 128×512"),
    operator("aten::add", "2×512×128, 2×512×128"),
    operator("aten::copy_", ""),
)


def test_all_that_works_on_scores_and_nothing_else():
    assert of_score_matrices((*OTHERS, *OF_ATTENTION)) == OF_ATTENTION


def test_of_one_query():
    decoding = (
        operator("aten::bmm", "8×1×32, 8×32×512"),
        operator("aten::_softmax", "8×1×512"),
        operator("aten::bmm", "8×1×512, 8×512×32"),
    )
    assert of_score_matrices(decoding) == decoding


def test_no_router_and_no_classifier():
    router = operator("aten::_softmax", "1024×8")
    sampled = operator("aten::_softmax", "2×512×1000")
    assert of_score_matrices((router, sampled, SCORES, VALUES)) == ()


def test_a_softmax_whose_result_no_product_takes():
    assert of_score_matrices((SOFTMAX, *OTHERS)) == ()
