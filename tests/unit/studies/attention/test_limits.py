"""Where naive attention ends under limits."""

import msgspec
import pytest

from peakward.studies import attention
from peakward.studies.attention import limits
from peakward.studies.scope import Scope

GIB = 2**30


@pytest.fixture
def ends(setting, gathered):
    def make(scope="corners", device="cuda", **options):
        here = setting(scope, device)
        readings = gathered(attention, here, **options)
        return limits.read(readings, here), readings

    return make


def test_a_peak_below_the_limit_settles_it_and_the_rest_is_run_under_it(ends):
    found, readings = ends()
    by_limit = {each.limit_bytes // GIB: each for each in found if each.first.precision == "fp32"}
    # Four times 8 × 16384² in fp32 is 32 GiB: too much for 24, little enough for 40.
    assert (by_limit[24].fits, by_limit[24].fails) == (4096, 16384)
    assert by_limit[24].failure.verdict == "oom"
    assert (by_limit[40].fits, by_limit[40].fails) == (16384, None)
    probes = [each.case for each in readings if each.case.memory_limit_bytes]
    in_fp32 = [case for case in probes if case.precision == "fp32"]
    assert {(case.seq_len, case.memory_limit_bytes // GIB) for case in in_fp32} == {(16384, 24)}
    assert {(case.attention, case.pass_, case.compile) for case in probes} == {
        ("naive", "backward", "none")
    }


def test_a_cpu_is_probed_up_to_the_first_failure(ends):
    found, readings = ends("small", "cpu", overrule=_out_above(128))
    (end,) = found
    assert (end.fits, end.fails, end.limit_bytes) == (128, 512, 384 * 2**20)
    probed = [each.case.seq_len for each in readings if each.case.memory_limit_bytes]
    assert probed == [128, 512]


def _out_above(seq_len):
    return lambda case: "oom" if case.memory_limit_bytes and case.seq_len > seq_len else None


def test_limits_of_the_users(ends):
    scope = msgspec.structs.replace(Scope("corners"), limits_bytes=(GIB,))
    found, _ = ends(scope)
    assert {each.limit_bytes for each in found} == {GIB}
    assert {each.fits for each in found} == {256}


def test_a_limit_above_the_devices_memory_is_noted(setting):
    (note,) = limits.notes(setting(memory=48 * GIB))
    assert note == "Not tested: 80 GiB, more than this device's 48 GiB."
