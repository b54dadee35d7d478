"""One operator near its roof."""

import msgspec
import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import abstains, given, judge, operator, profile


def dominated(share, roof_share):
    return given(
        profile(operators=(operator("aten::mm", "4096×4096, 4096×4096", 100 * share, roof_share),))
    )


@pytest.mark.parametrize(("share", "roof"), [(0.4, 0.7), (1.0, 0.9)])
def test_its_share(share, roof):
    found = judge("PREC002", dominated(share, roof))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(0.1 * share)
    assert found.evidence[0].value == roof


@pytest.mark.parametrize(("share", "roof"), [(0.1, 0.9), (0.9, 0.3)])
def test_silent_where_small_or_far_from_it(share, roof):
    assert judge("PREC002", dominated(share, roof)) is None


def test_what_bandwidth_bounds_is_not_told_to_need_fewer_flops():
    """100 ms at 80% of an H100's 3.35 TB/s: a product of a few rows, or an addition."""
    of_bytes = msgspec.structs.replace(
        operator("aten::mm", "1×8192, 8192×8192", 100, 0.8), n_bytes=round(0.08 * 3.35e12)
    )
    assert judge("PREC002", given(profile(operators=(of_bytes,)))) is None


@pytest.mark.parametrize(
    ("dtype", "levers"),
    [
        ("float", ("tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp8")),
        ("c10::BFloat16", ("fp8",)),
        ("c10::Half", ("fp8",)),
    ],
)
def test_levers_are_narrower_than_the_operands(dtype, levers):
    product = msgspec.structs.replace(operator("aten::mm", "8×8, 8×8", 90, 0.8), dtype=dtype)
    assert judge("PREC002", given(profile(operators=(product,)))).levers == levers


def test_without_shapes():
    assert abstains("PREC002", given(profile()))
    assert abstains("PREC002", dominated(0.9, None))
