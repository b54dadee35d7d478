"""The figures of the report, and the page that shows them."""

import msgspec
import pytest

from accuracy import generality, page, products
from accuracy.groups import group, nine_in_ten
from accuracy.host_reasons import causes
from accuracy.measured import studies
from accuracy.reasons import Evidence, reason
from accuracy.records import Merged
from accuracy.seen import FITTED_ON, seen
from peakward.models.presets import model
from peakward.records.case import ModelCase, Workload
from peakward.records.profile import OperatorRate
from peakward.report import markdown
from stored_results import FOLDER

from .conftest import SITES


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([0.3], 0.3), ([0.1 * i for i in range(1, 11)], 0.9), ([0.1 * i for i in range(11)], 0.9)],
)
def test_nine_in_ten_do_not_exceed_it(sizes, expected):
    assert nine_in_ten(sizes[::-1]) == pytest.approx(expected)


def told(case, estimate, low, high, measured_s=1.0):
    step_s = msgspec.structs.replace(case.calibrated.step_s, estimate=estimate, low=low, high=high)
    predicted = msgspec.structs.replace(case.calibrated, step_s=step_s)
    return msgspec.structs.replace(case, measured_s=measured_s, calibrated=predicted)


def test_a_group_by_hand(stored):
    case = stored.cases[0]
    cases = [told(case, 0.9, 0.8, 1.0), told(case, 1.3, 1.1, 1.5), told(case, 1.02, 1.0, 1.1)]
    found = group("calibrated", "all", "all", cases)
    assert (found.n, found.coverage) == (3, pytest.approx(2 / 3))
    assert (found.median, found.p90, found.worst, found.bias) == pytest.approx(
        (0.1, 0.3, 0.3, 0.02)
    )


def test_factors_hold_nine_in_ten(stored):
    case = stored.cases[0]
    cases = [told(case, 1.0, 0.5, 1.5, measured_s=0.8 + 0.004 * i) for i in range(101)]
    assert generality.factors(cases) == pytest.approx((0.82, 1.18))


@pytest.mark.parametrize(
    ("dims", "shape"),
    [("512×768, 768×2304", (512, 2304, 768, 1)), ("48×512×64, 48×64×512", (512, 512, 64, 48))],
)
def test_the_dims_of_a_product(dims, shape):
    rate = OperatorRate(
        name="aten::mm",
        dims=dims,
        dtype="float",
        n=1,
        flops=1,
        n_bytes=1,
        kernel_ns=1,
        flops_per_s=1.0,
        bytes_per_s=1.0,
        roof_share=None,
    )
    assert products.shape(rate) == shape


@pytest.mark.parametrize(
    ("model_name", "file", "bound", "expected"),
    [
        ("small", "2026-11-21-h200-bench-eager.json", "host", "host costs"),
        ("small", "2026-11-21-h200-study-warmup.json", "host", "nothing"),
        ("small", "2026-11-21-h200-study-warmup.json", "device", "operators of the shape"),
        ("llama-3.2-1b", "2026-11-21-h200-bench-shapes.json", "device", "nothing"),
    ],
)
def test_what_the_constants_have_seen_of_a_case(model_name, file, bound, expected):
    case = ModelCase(
        model=model(model_name), workload=Workload(batch_size=1, seq_len=8), device="cuda"
    )
    made = Merged(
        case=case, step_s=1.0, verdict="stable", taken=(), all=(), files=(file,), boards=()
    )
    assert seen(made, bound, FITTED_ON) == expected
    assert seen(made, bound, "h100-sxm-80") == "nothing"


def test_a_step_of_the_same_calls_is_evidence(stored):
    """small at 4 × 128, 256 and 512, bf16-mixed: one and the same work for the host."""
    case = next(
        each for each in stored.cases if each.label.startswith("small 4 × 256 train_step, bf16-mix")
    )
    assert any("the same calls on other sizes" in each for each in causes(case, stored.cases))
    assert not any("the same calls" in each for each in causes(case, [case]))


@pytest.mark.full
def test_a_profile_tells_a_step_that_the_host_held_up_from_one_that_its_kernels_fill(now):
    """small 4 × 1024 in bf16 on a slow host, and in tf32 on the same."""
    folder = studies(FOLDER)["2026-11-27-h200-study-precision.json"]
    profiles = {each.case: each for each in folder.profiles}
    evidence = Evidence(now, profiles, SITES[FITTED_ON].calibrated)
    told = {
        each.case.configuration.precision: reason(each, evidence)
        for each in now
        if each.case in profiles
    }
    assert "the device was busy for 30.9 ms a step" in told["bf16"]
    assert "the host held it up" not in told["tf32"]


def test_the_page_is_the_findings(stored):
    text = markdown.render(page.document(stored))
    every = stored.groups[0]
    assert f"**{every.n} cases from a calibration: median error " in text
    for each in (*stored.worst, *stored.worst_by_device):
        assert markdown.escape(each.reason) in text
    for refusal in stored.refused:
        assert markdown.escape(refusal.reason) in text
