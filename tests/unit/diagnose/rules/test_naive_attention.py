"""A score matrix in memory."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.records.profile import OperatorRate, RangeWork

from .made import MS, PRODUCTS, abstains, case, given, judge, kernel, profile

SOFTMAX = "softmax_warp_forward<float>"


def scoring(ms, name=SOFTMAX, **others):
    return profile(PRODUCTS, kernel(name, ms, "softmax"), **others)


@pytest.mark.parametrize("ms", [10, 100])
def test_without_ranges_the_softmax_and_no_bound(ms):
    for of in (None, case()):
        found = judge("ATTN001", given(scoring(ms), case=of))
        assert isinstance(found, Symptom)
        assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)
        assert not found.is_all


def test_with_ranges_all_of_it():
    inside = (
        RangeWork(
            name="peakward::attention.softmax",
            direction="forward",
            category="softmax",
            n=1,
            total_ns=10 * MS,
        ),
        RangeWork(
            name="peakward::attention.scores",
            direction="forward",
            category="matmul",
            n=1,
            total_ns=25 * MS,
        ),
    )
    found = judge("ATTN001", given(scoring(10, ranges=inside), case=case()))
    assert sum(found.parts.values()) == pytest.approx(0.035)
    assert found.is_all


def test_silent_of_the_loss_of_fused_attention_and_of_little():
    loss = scoring(50, "cunn_SoftMaxForwardSmem<float, LogSoftMaxForwardEpilogue, long>")
    assert judge("ATTN001", given(loss)) is None
    both = profile(
        PRODUCTS, kernel(SOFTMAX, 50, "softmax"), kernel("flash_fwd_kernel", 9, "attention")
    )
    assert judge("ATTN001", given(both)) is None
    assert judge("ATTN001", given(scoring(50), case=case(attention="sdpa"))) is None
    assert judge("ATTN001", given(scoring(1))) is None


def test_without_a_profile():
    assert abstains("ATTN001", given())


def by_shapes(*operators):
    return tuple(
        OperatorRate(
            name=name,
            dims=dims,
            dtype="float",
            n=1,
            flops=None,
            n_bytes=None,
            kernel_ns=ms * MS,
            flops_per_s=None,
            bytes_per_s=None,
            roof_share=None,
        )
        for name, dims, ms in operators
    )


def test_by_shapes_beside_fused_attention():
    """Half of the layers: the products on scores count, and those of the fused half do not."""
    operators = by_shapes(
        ("aten::bmm", "8×512×32, 8×32×512", 20),
        ("aten::_softmax", "2×4×512×512", 10),
        ("aten::bmm", "8×512×512, 8×512×32", 15),
        ("aten::mm", "1024×128, 128×512", 30),
    )
    seen = profile(
        PRODUCTS,
        kernel(SOFTMAX, 10, "softmax"),
        kernel("flash_fwd_kernel", 9, "attention"),
        operators=operators,
    )
    found = judge("ATTN001", given(seen))
    assert sum(found.parts.values()) == pytest.approx(0.045)
    assert not found.is_all


def test_silent_of_a_router_whose_shapes_are_known():
    operators = by_shapes(("aten::_softmax", "1024×8", 50))
    assert judge("ATTN001", given(scoring(50, operators=operators))) is None
