"""All rules together: ranking, overlap, bounds, abstention."""

import re

import pytest

from peakward.diagnose.examine import FAMILIES, RULES, examine
from peakward.records import codec
from peakward.records.finding import Diagnosis
from peakward.records.measurement import Interval, Telemetry, Validity
from peakward.records.profile import HostCall

from .rules.made import (
    MS,
    PRODUCTS,
    case,
    foretold,
    given,
    host,
    kernel,
    measurement,
    of_host,
    operator,
    profile,
)

CAST = kernel("unrolled_elementwise_kernel<direct_copy_kernel_cuda<float>>", 50, "copy")


def codes(found: Diagnosis) -> list[str]:
    return [each.code for each in found.findings]


def test_every_rule_finds_abstains_or_is_clean():
    for made in (given(), given(profile()), given(of_host()), given(profile(CAST))):
        found = examine(made)
        said = [*codes(found), *(each.code for each in found.abstentions), *found.clean]
        assert sorted(said) == sorted(rule.code for rule in RULES)


def test_nothing_is_found_in_a_clean_profile():
    assert examine(given(profile())).findings == ()


def test_what_holds_back_most_is_first():
    found = examine(given(profile(CAST, PRODUCTS, idle={"host_bound": 100, "data_loading": 20})))
    assert codes(found) == ["HOST002", "PREC003", "HOST001"]
    shares = [each.share for each in found.findings]
    assert shares == sorted(shares, reverse=True)


def test_a_general_finding_is_about_what_no_narrower_one_explains():
    """Its time, share and bound are of the same part of the time as the threshold from which it is told."""
    sums = kernel("vectorized_elementwise_kernel<CUDAFunctor_add<float>>", 40, "elementwise")
    found = examine(given(profile(CAST, sums, PRODUCTS)))
    assert codes(found) == ["PREC003", "BW001"]
    narrow, general = found.findings
    assert narrow.held_back_s == pytest.approx(0.05)
    assert general.held_back_s == general.beyond_s == pytest.approx(0.04)
    assert general.share == pytest.approx(0.04 / found.whole_s)
    assert general.bound == pytest.approx(1 / (1 - 0.04 / found.whole_s))
    assert not [each for each in general.evidence if CAST.name in each.name]


@pytest.mark.parametrize("ms", [0, 20])
def test_a_general_finding_with_little_of_its_own_is_not_told(ms):
    sums = kernel("vectorized_elementwise_kernel<CUDAFunctor_add<float>>", ms, "elementwise")
    found = examine(given(profile(CAST, sums, PRODUCTS)))
    assert codes(found) == ["PREC003"]
    assert "BW001" in found.clean


def test_what_is_about_a_share_of_everything_hides_no_general_finding():
    """A throttled clock, which slows all work, explains no chain of formulas."""
    sums = kernel("vectorized_elementwise_kernel<CUDAFunctor_add<float>>", 22, "elementwise")
    throttled = Validity(verdict="throttled", reasons=("power cap",))
    clock = Interval(estimate=1600.0, low=1500.0, high=1980.0, level=1.0)
    made = measurement(case(), validity=throttled, telemetry=Telemetry(sm_clock_mhz=clock))
    found = examine(given(profile(sums, PRODUCTS), case=case(), measurement=made))
    assert {"DEV001", "BW001"} <= set(codes(found))


def test_what_loses_nothing_is_last():
    """A step at its roof that also waits: the wait is what can be mended."""
    at_roof = operator("aten::mm", "4096×4096, 4096×4096", 95, 0.8)
    found = examine(given(profile(PRODUCTS, idle={"data_loading": 20}, operators=(at_roof,))))
    assert codes(found) == ["HOST001", "PREC002"]
    assert found.findings[1].share > found.findings[0].share


def test_together_they_are_never_more_than_the_whole():
    calls = (HostCall(name="cudaFree", n=9, sum_ns=400 * MS, longest_ns=1),)
    busy = profile(
        CAST,
        kernel("softmax_warp_forward<float>", 80, "softmax"),
        kernel("elementwise_kernel<direct_copy_kernel_cuda<float>>", 60, "copy"),
        idle={"host_bound": 100, "synchronisation": 50, "after_synchronisation": 40},
        host=host(*calls),
    )
    found = examine(given(busy))
    assert len(found.findings) >= 6
    assert sum(each.held_back_s for each in found.findings) > found.whole_s
    assert sum(each.beyond_s for each in found.findings) <= found.whole_s * (1 + 1e-12)


def test_the_bound_is_amdahls():
    (found,) = examine(given(profile(idle={"data_loading": 300}))).findings
    assert found.share == pytest.approx(0.75)
    assert found.bound == pytest.approx(4.0)


def test_a_part_of_what_a_lever_takes_away_bounds_nothing():
    softmax = profile(PRODUCTS, kernel("softmax_warp_forward<float>", 10, "softmax"))
    (found,) = examine(given(softmax)).findings
    assert (found.code, found.bound) == ("ATTN001", None)


def test_idle_time_is_that_of_the_measured_step():
    of = case()
    slow = profile(idle={"data_loading": 300})
    made = given(slow, case=of, measurement=measurement(of, 0.15), n_steps=1)
    found = examine(made)
    assert (found.whole_s, found.basis) == (0.15, "measured step")
    assert found.findings[0].held_back_s == pytest.approx(0.05)


def test_gains_are_predicted_and_cut_at_the_bound():
    of = case(workload={"batch_size": 16})
    slow = profile(
        kernel("nvjet_sm90_tst_128x128_64x6_1x1_h_bz_TNT", 500),
        kernel("cutlass_80_simt_sgemm_128x128_8x4_nt_align1", 50),
    )
    found = examine(foretold(of, profile=slow))
    of_cores = next(each for each in found.findings if each.code == "PREC001")
    assert of_cores.gains
    for each in of_cores.gains:
        assert each.predicted.estimate > of_cores.bound == pytest.approx(1.1)
        assert each.gain.high == each.gain.estimate == of_cores.bound
        assert each.source.startswith("prediction for NVIDIA H100")


def test_without_a_case_no_gain_is_computed():
    found = examine(given(profile(idle={"host_bound": 100})))
    for each in found.findings[0].gains:
        assert each.gain is None
        assert each.source.startswith("not computed: no case")


def test_the_record_is_written_and_read():
    found = examine(foretold(case(), profile=profile(CAST)))
    assert codec.from_json(codec.to_json(found), Diagnosis) == found


def test_evidence_names_the_record_that_it_is_in():
    of = case(workload={"batch_size": 48, "seq_len": 1024})
    slow = profile(CAST, PRODUCTS, idle={"host_bound": 100, "synchronisation": 20})
    made = measurement(of, status="oom", summary=None)
    found = examine(foretold(of, profile=slow, measurement=made, n_steps=1))
    records = ("profile ", "measurement ", "forecast ", "memory ", "case ")
    stored = [each.stored for finding in found.findings for each in finding.evidence]
    assert len(stored) > 6
    assert all(each.startswith(records) for each in stored)


def test_codes_are_of_a_family_with_three_digits_each_once():
    codes = [each.code for each in RULES]
    assert all(re.fullmatch(rf"(?:{'|'.join(FAMILIES)})\d{{3}}", each) for each in codes)
    assert len(set(codes)) == len(codes)


def test_they_stand_by_family_and_number_and_what_explains_the_rest_comes_last():
    codes = [each.code for each in RULES]
    families = [code[:-3] for code in codes]
    assert list(dict.fromkeys(families)) == list(FAMILIES)
    assert codes[-1] == "TIME001"
    for family in FAMILIES:
        of_it = [code for code in codes if code[:-3] == family]
        assert of_it == sorted(of_it)
